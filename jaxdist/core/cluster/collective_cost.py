"""Measured cost of a kind of collective in groups of a size, on a level's links.

    seconds = (messages x alpha + share x sent / bandwidth) x bend(sent)

alpha and bandwidth are the level's own, so that asking about another link asks about
all of its lines. No collective is straight: a library changes its algorithm with the
size, and a shaped link lets the first bytes pass. How far timings lie from the line is
its bend, by the bytes that a device sends in one collective. Devices that computed as
long as each other do not end together: what the others then wait for the last of them
is no part of the line, but its skew.

Groups of one size lie in several ways: two devices of each of two hosts, or one of each
of four. What each way takes is a line of its own, told by `inside`.
"""

import math
from dataclasses import dataclass

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

CorrectionPoints = tuple[tuple[float, float], ...]

_TOGETHER = SourcedNumber(0.0, "assumed: devices that compute the same end together")


@dataclass(frozen=True, kw_only=True)
class CollectiveCost:
    """What collectives of a kind and group size take, beside their level's numbers."""

    kind: str
    """As the compiler names it: `all-gather`."""
    devices: int
    """Of a group."""
    messages: SourcedNumber
    """As many times the level's alpha pass before and between its bytes."""
    share: SourcedNumber
    """Seconds of its bytes, over those at the level's bandwidth."""
    inside: int | None = None
    """Devices of a group in one unit of the level below; None: any number."""
    bend: CorrectionPoints = ()
    """(bytes that a device sends, seconds over those of the line), bytes ascending."""
    skew: SourcedNumber = _TOGETHER
    """Seconds by which the last is late where all have computed as long."""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.bend]
        if sizes != sorted(set(sizes)) or any(min(point) <= 0 for point in self.bend):
            raise BadInput(
                f"a line of {self.kind} that bends nowhere",
                rule="bend is [bytes, times as long], above 0, bytes ascending",
                values=f"{[list(point) for point in self.bend]}",
                remedy="[[1e3, 1.0], [1e6, 1.2]]",
            )
        if self.devices < 2:
            raise BadInput(
                f"a line of {self.kind} among {self.devices}",
                rule="a collective has at least two devices",
                values=f"devices = {self.devices}",
                remedy="devices: 2",
            )
        if self.inside is not None and not 1 <= self.inside < self.devices:
            raise BadInput(
                f"a line of {self.kind} that crosses no links of its level",
                rule="inside is at least 1, and less than devices",
                values=f"inside = {self.inside}, devices = {self.devices}",
                remedy="inside: 1, or without it",
            )

    def times(self, sent_bytes: float) -> float:
        """Return the time of one collective over that of the line, by its bytes.

        Between two points it is straight over the logarithm of the bytes; outside it
        is that of the nearest point.

        >>> some = SourcedNumber(1.0, "given: me")
        >>> bent = ((1e4, 1.0), (1e6, 2.0))
        >>> line = CollectiveCost(
        ...     kind="all-gather", devices=4, messages=some, share=some, bend=bent
        ... )
        >>> line.times(1e5), line.times(1e9)
        (1.5, 2.0)
        """
        return interpolate(self.bend, sent_bytes) if self.bend else 1.0

    @property
    def name(self) -> str:
        """As it stands in a path: `all-gather/4`, or `all-gather/4/2` with 2 inside."""
        lies = "" if self.inside is None else f"/{self.inside}"
        return f"{self.kind}/{self.devices}{lies}"

    def apart(self, per_unit: int) -> float:
        """Return how far a group's layout is from the measured one; 0: the same.

        Args:
            per_unit: devices of the group in one unit of the level below.

        >>> some = SourcedNumber(1.0, "given: me")
        >>> line = CollectiveCost(
        ...     kind="all-gather", devices=8, messages=some, share=some, inside=4
        ... )
        >>> line.apart(4), line.apart(2) < line.apart(1)
        (0.0, True)
        """
        # By ratio: half as many devices inside are as far off as twice as many.
        return abs(math.log(per_unit / (self.inside or per_unit)))


def interpolate(points: CorrectionPoints, size: float) -> float:
    """Return a value between points, linear in the logarithm of the size.

    Sizes span decades. Outside the points it is the value of the nearest one.

    Args:
        points: (size, value), sizes ascending.
        size: where it is asked for, above 0.
    """
    (low, start), *others = points
    if size <= low:
        return start
    for high, end in others:
        if size <= high:
            return start + math.log(size / low) / math.log(high / low) * (end - start)
        low, start = high, end
    return start
