"""Effort: how long a search takes, before it begins."""

from collections.abc import Sequence
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_duration
from jaxdist.planner.stages.link_hierarchy import LinkLevel

MAX_SEARCH_SECONDS: Final = 1_000.0
"""Of a search, on a core that was measured."""
_CALL_SECONDS: Final = 11e-6
"""Seconds for each split of components in two, measured."""
_CELL_SECONDS: Final = 1.5e-9
"""Seconds for each stage or pair of stages that is looked at then, measured."""


def check_search_cost(cut_points: int, levels: Sequence[LinkLevel]) -> None:
    """Refuse a search that nobody waits for.

    Args:
        cut_points: to cut at.
        levels: devices, innermost first.

    Raises:
        BadInput: it would take longer than `MAX_SEARCH_SECONDS`.
    """
    found = search_seconds(cut_points, levels)
    if found > MAX_SEARCH_SECONDS:
        shown = ",".join(str(tier.size) for tier in levels)
        raise BadInput(
            "the search would take too long",
            rule=f"a search takes at most {format_duration(MAX_SEARCH_SECONDS)}; it "
            "grows with the "
            "square of the components of a level",
            values=f"--levels {shown}, {cut_points} places to cut: "
            f"{format_duration(found)}",
            remedy="--levels 8,64,... with a bandwidth for each, innermost first",
        )


def search_seconds(cut_points: int, levels: Sequence[LinkLevel]) -> float:
    """Return about how many seconds a search takes where memory is not limited.

    >>> from jaxdist.planner.stages.link_hierarchy import LinkLevel
    >>> round(search_seconds(351, [LinkLevel(size=16, bandwidth=1.0)]), 3)
    0.025
    """
    *inner, outer = (tier.size**2 / 2 for tier in levels)
    cells = outer * cut_points**2 + sum(inner) * cut_points**3 / 6
    calls = outer + sum(inner) * cut_points
    return cells * _CELL_SECONDS + calls * _CALL_SECONDS
