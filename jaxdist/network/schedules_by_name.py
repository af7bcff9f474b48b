"""Step lists by name, with the ranks of a host where a list has two levels."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from jaxdist.collectives.algorithms.registry import make_schedule
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.algorithms.two_level import two_level_halving, two_level_ring
from jaxdist.core.errors import BadInput

TWO_LEVEL_SCHEDULES: Final[
    Mapping[str, Callable[[int, int | None], CollectiveSchedule]]
] = MappingProxyType(
    {"two_level_ring": two_level_ring, "two_level_halving": two_level_halving}
)
"""Lists that know hosts."""


def schedule_by_name(
    name: str, ranks: int, per_host: int | None = None
) -> CollectiveSchedule:
    """Return a step list.

    Args:
        name: as in the registry of lists; `-` may stand for `_`.
        ranks: P.
        per_host: ranks of a host, for lists of two levels.

    Raises:
        BadInput: no such list, not defined for so many ranks, or hosts for a list that
            knows none.

    >>> len(schedule_by_name("two-level-ring", 8, per_host=4).steps)
    8
    """
    # The command line has dashes.
    key = name.replace("-", "_")
    if key in TWO_LEVEL_SCHEDULES:
        return TWO_LEVEL_SCHEDULES[key](ranks, per_host)
    if per_host is not None:
        raise BadInput(
            f"{name} knows no hosts",
            rule=f"ranks of a host are for {', '.join(TWO_LEVEL_SCHEDULES)}",
            values=f"per_host={per_host}",
            remedy=f"{name} without them, or two_level_ring",
        )
    return make_schedule(key, ranks)
