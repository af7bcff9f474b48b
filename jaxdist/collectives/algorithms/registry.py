"""Collective schedules by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from jaxdist.collectives.algorithms.bucket import bucket_2d
from jaxdist.collectives.algorithms.double_tree import double_binary_tree
from jaxdist.collectives.algorithms.halving_doubling import (
    halving_doubling,
    halving_doubling_far,
    striped_halving_doubling,
    swing,
)
from jaxdist.collectives.algorithms.parameter_server import (
    parameter_server,
    sharded_parameter_server,
)
from jaxdist.collectives.algorithms.recursive_doubling import recursive_doubling
from jaxdist.collectives.algorithms.rings import ring
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.algorithms.two_level import two_level_halving, two_level_ring
from jaxdist.core.errors import BadInput, did_you_mean

SCHEDULES: Final[Mapping[str, Callable[[int], CollectiveSchedule]]] = MappingProxyType(
    {
        "ring": ring,
        "recursive_doubling": recursive_doubling,
        "halving_doubling": halving_doubling,
        "halving_doubling_far": halving_doubling_far,
        "swing": swing,
        "striped_halving_doubling": striped_halving_doubling,
        "double_binary_tree": double_binary_tree,
        "two_level_ring": two_level_ring,
        "two_level_halving": two_level_halving,
        "bucket_2d": bucket_2d,
        "parameter_server": parameter_server,
        "sharded_parameter_server": sharded_parameter_server,
    }
)
"""Each takes the number of ranks; its other settings have defaults."""


def make_schedule(name: str, ranks: int) -> CollectiveSchedule:
    """Return a schedule by name.

    Args:
        name: one of `SCHEDULES`.
        ranks: number of ranks P.

    Raises:
        BadInput: no such name, or not defined for so many ranks.

    >>> make_schedule("ring", 4).name
    'ring'
    """
    if name not in SCHEDULES:
        near = did_you_mean(name, SCHEDULES)
        raise BadInput(
            f"no algorithm named {name}",
            rule=f"one of {', '.join(SCHEDULES)}",
            values=f"name={name!r}",
            remedy=near or "ring",
        )
    return SCHEDULES[name](ranks)
