"""Object stores by address, `s3://`, `gs://` or `http://`, through TensorStore."""

import os
import re
from typing import Any, Final

_FEW_RETRIES: Final = {"max_retries": 4, "initial_delay": "0.2s", "max_delay": "2s"}
_RETRIED: Final = ("http_request_retries", "s3_request_retries", "gcs_request_retries")
_DENIED: Final = re.compile(
    "PERMISSION_DENIED|UNAUTHENTICATED|[Cc]redential|HTTP 40[13]"
)
CREDENTIALS_REMEDY: Final = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or AWS_PROFILE, "
    "for s3://",
    "GOOGLE_APPLICATION_CREDENTIALS=KEY.json, or gcloud auth application-default "
    "login, for gs://",
)
"""What to do where a store does not let one in."""


def kvstore_spec(address: str) -> dict[str, Any]:
    """Return TensorStore's description of what lies under an address.

    Args:
        address: with `s3://`, `gs://`, `http://`, `https://` or `file://`.

    Raises:
        ValueError: it is no address.
    """
    import tensorstore

    # With one / at the end: without it `scans` would also be the beginning of `scans2`.
    spec: dict[str, Any] = tensorstore.KvStore.Spec(address.rstrip("/") + "/").to_json()
    if spec["driver"] == "s3":
        # As other programs of Amazon's interface take it, for stores of one's own.
        if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
            spec["endpoint"] = endpoint
            spec["aws_region"] = os.environ.get("AWS_REGION", "us-east-1")
        # Asked for files of credentials, AWS's library writes lines of errors for each
        # that is not there.
        if "AWS_ACCESS_KEY_ID" in os.environ:
            spec["aws_credentials"] = {"type": "environment"}
    return spec


def open_kvstore(spec: dict[str, Any], *, patient: bool) -> Any:
    """Open a store, as TensorStore's `KvStore`.

    Args:
        spec: as `kvstore_spec` returns it.
        patient: try again for minutes, as in the midst of a run, and not for seconds.

    Raises:
        ValueError: it cannot be reached.
    """
    import tensorstore

    few = {} if patient else dict.fromkeys(_RETRIED, _FEW_RETRIES)
    context = tensorstore.Context(few)
    return tensorstore.KvStore.open(spec, context=context).result()


def shown_error(error: Exception) -> str:
    """Return what TensorStore says of an error, without places in its own source."""
    return re.sub(r"\s*\[source locations=.*", "", str(error), flags=re.DOTALL)


def is_access_denied(said: str) -> bool:
    """Tell whether a store did not let one in.

    >>> is_access_denied("PERMISSION_DENIED: Error reading ...: HTTP 403")
    True
    """
    return bool(_DENIED.search(said))
