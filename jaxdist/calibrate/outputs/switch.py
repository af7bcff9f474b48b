"""A switch of algorithm: where two lines go through the timings far better than one.

A library takes another algorithm or protocol from some size on. The cluster keeps one
alpha and one bandwidth; that they hide a switch is said.
"""

from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.links import Timing, Wire, wire
from jaxdist.calibrate.outputs.printed import FEWEST, Printed

_STRAIGHT: Final = 0.03
"""Spread below which one line is enough."""
_BETTER: Final = 0.5
"""Share of one line's spread that two must get below."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Two lines in place of one."""

    program: str
    """Whose sizes these are."""
    below: int
    """Largest size of the first line, bytes as printed."""
    above: int
    """Smallest size of the second one."""
    small: Wire
    """Line up to `below`."""
    large: Wire
    """Line from `above` on."""
    spread: float
    """Mean of |lines - timing| / timing."""


def switch_of(table: Printed, one: Wire) -> Switch | None:
    """Return the best switch, or none where one line is about as good.

    Args:
        table: of one program.
        one: the line through it.
    """
    sizes = sorted(set(table.sizes))
    places = range(FEWEST, len(sizes) - FEWEST + 1)
    if one.spread < _STRAIGHT or not places:
        return None
    tried = (_at(table, sizes[i - 1], sizes[i]) for i in places)
    best = min(tried, key=lambda switch: switch.spread)
    return best if best.spread < _BETTER * one.spread else None


def _at(table: Printed, below: int, above: int) -> Switch:
    pairs = list(zip(table.sizes, table.timings, strict=True))
    sides: list[list[Timing]] = [
        [timing for size, timing in pairs if size <= below],
        [timing for size, timing in pairs if size >= above],
    ]
    small, large = (wire(side, table.ranks) for side in sides)
    off = small.spread * len(sides[0]) + large.spread * len(sides[1])
    return Switch(
        program=table.program,
        below=below,
        above=above,
        small=small,
        large=large,
        spread=off / len(pairs),
    )
