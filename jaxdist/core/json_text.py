"""JSON text of a run's files and reports: null where a number is not finite."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, *, indent: int | None = None, ascii_only: bool = True) -> str:
    """Return a value as JSON; most readers refuse a file with NaN or Infinity.

    Args:
        value: what `json.dumps` takes.
        indent: spaces of a level; None for one line.
        ascii_only: whether other characters are escaped.

    >>> json_text({"loss": float("nan"), "steps": [1, float("inf")]})
    '{"loss": null, "steps": [1, null]}'
    """
    return json.dumps(
        _finite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
