"""jaxdist plans how to split a training, runs exactly that plan, and compares.

The public names are lazy: importing the package costs nothing until one is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Cluster": "jaxdist.core.cluster",
    "MeshShape": "jaxdist.core.plan",
    "Plan": "jaxdist.core.plan",
    "Profile": "jaxdist.core.profile",
    "Run": "jaxdist.core.run_record",
    "audit": "jaxdist.inspect",
    "build_abstract_network": "jaxdist.inspect",
    "bytes_of": "jaxdist.inspect",
    "fit": "jaxdist.train.loop",
    "load": "jaxdist.train.load",
    "profile_network": "jaxdist.inspect",
}

if TYPE_CHECKING:
    from jaxdist.core.cluster import Cluster as Cluster
    from jaxdist.core.plan import MeshShape as MeshShape
    from jaxdist.core.plan import Plan as Plan
    from jaxdist.core.profile import Profile as Profile
    from jaxdist.core.run_record import Run as Run
    from jaxdist.inspect import audit as audit
    from jaxdist.inspect import build_abstract_network as build_abstract_network
    from jaxdist.inspect import bytes_of as bytes_of
    from jaxdist.inspect import profile_network as profile_network
    from jaxdist.train.load import load as load
    from jaxdist.train.loop import fit as fit


def __getattr__(name: str) -> Any:
    if name == "inspect":  # the module itself: `jaxdist.inspect.audit`
        return import_module("jaxdist.inspect")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'jaxdist' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
