"""A timetable: who does what in which tick, and what follows from that alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxdist.pipeline.work_item import Supersteps, Ticks, WorkItem, WorkKind


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """The ticks of some devices."""

    name: str
    """What the order of work is called."""
    microbatches: int
    """Microbatches, from 0."""
    supersteps: Supersteps
    """`beats[b][t][device]`: what the device does in tick t of beat b, or None. A beat
    ends with an exchange: what was made in it can be used from the next one on, and by
    who made it at once.
    """

    @cached_property
    def ticks(self) -> Ticks:
        """`ticks[t][device]`: what the device does in tick t, or None."""
        return tuple(row for beat in self.supersteps for row in beat)

    @property
    def exchanges(self) -> int:
        """How often devices hand on what they made."""
        return len(self.supersteps)

    @property
    def length(self) -> int:
        """Number of ticks."""
        return len(self.ticks)

    @property
    def bubble_fraction(self) -> float:
        """Share of ticks, over all devices, without work: the bubble."""
        return bubble_fraction(self.ticks)

    @cached_property
    def tick_of(self) -> dict[WorkItem, int]:
        """The tick of each work."""
        return tick_of(self.ticks)


def device_column(ticks: Ticks, device: int) -> tuple[WorkItem | None, ...]:
    """Return what one device does, tick by tick."""
    return tuple(row[device] for row in ticks)


def tick_of(ticks: Ticks) -> dict[WorkItem, int]:
    """Return the tick of each work."""
    return {work: tick for tick, row in enumerate(ticks) for work in row if work}


def bubble_fraction(ticks: Ticks) -> float:
    """Return the share of ticks, over all devices, in which nobody works."""
    cells = [work for row in ticks for work in row]
    return cells.count(None) / len(cells)


def peak_live_inputs(works: Iterable[WorkItem | None], release_kind: WorkKind) -> int:
    """Return how many stage inputs a device holds at most.

    An input is held from the tick of its forward to that of its last use, inclusive.

    Args:
        works: what the device does, in order.
        release_kind: kind of its last use.
    """
    held = most = 0
    for work in filter(None, works):
        held += work.kind == "forward"
        most = max(most, held)
        held -= work.kind == release_kind
    return most
