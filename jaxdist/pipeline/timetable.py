"""A timetable: who does what in which tick, and what follows from that alone."""

from dataclasses import dataclass
from functools import cached_property

from jaxdist.pipeline import counts
from jaxdist.pipeline.work import Beats, Ticks, Work


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """The ticks of some devices."""

    name: str
    """What the order of work is called."""
    microbatches: int
    """Microbatches, from 0."""
    beats: Beats
    """`beats[b][t][device]`: what the device does in tick t of beat b, or None. A beat
    ends with an exchange: what was made in it can be used from the next one on, and by
    who made it at once.
    """

    @cached_property
    def ticks(self) -> Ticks:
        """`ticks[t][device]`: what the device does in tick t, or None."""
        return tuple(row for beat in self.beats for row in beat)

    @property
    def exchanges(self) -> int:
        """How often devices hand on what they made."""
        return len(self.beats)

    @property
    def length(self) -> int:
        """Number of ticks."""
        return len(self.ticks)

    @property
    def idle(self) -> float:
        """Share of ticks, over all devices, without work: the bubble."""
        return counts.idle(self.ticks)

    @cached_property
    def tick_of(self) -> dict[Work, int]:
        """The tick of each work."""
        return counts.tick_of(self.ticks)
