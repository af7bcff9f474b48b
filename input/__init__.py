"""Data to the devices, in an order that survives anything.

`loader` and `sampler` serve any training loop; their names, and those of the ways to
shuffle, are lazy: importing the package costs nothing until one is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

_LAZY_NAMES: Final = {
    "ArrayRecordSource": "jaxdist.input.array_record",
    "ArraySource": "jaxdist.input.sources",
    "Global": "jaxdist.core.plan.shuffle",
    "Keep": "jaxdist.input.local_shuffle.setup",
    "Local": "jaxdist.core.plan.shuffle",
    "Mixture": "jaxdist.input.mixture",
    "Partial": "jaxdist.core.plan.shuffle",
    "Workers": "jaxdist.input.prefetch",
    "loader": "jaxdist.input.data_loader",
    "sampler": "jaxdist.input.data_sampler",
}

# Type checkers see plain imports; at run time `__getattr__` imports one when it is
# used. Submodules are not named like `loader` and `sampler`: an imported submodule
# becomes an attribute of its package, and would stand in place of the function.
if TYPE_CHECKING:
    from jaxdist.core.plan.shuffle import Global as Global
    from jaxdist.core.plan.shuffle import Local as Local
    from jaxdist.core.plan.shuffle import Partial as Partial
    from jaxdist.input.array_record import ArrayRecordSource as ArrayRecordSource
    from jaxdist.input.data_loader import loader as loader
    from jaxdist.input.data_sampler import sampler as sampler
    from jaxdist.input.local_shuffle.setup import Keep as Keep
    from jaxdist.input.mixture import Mixture as Mixture
    from jaxdist.input.prefetch import Workers as Workers
    from jaxdist.input.sources import ArraySource as ArraySource


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        return getattr(import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'jaxdist.input' has no attribute '{name}'")


def __dir__() -> list[str]:
    # For completion: lazy names are no globals yet.
    return [*globals(), *_LAZY_NAMES]
