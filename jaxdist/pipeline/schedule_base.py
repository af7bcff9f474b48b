"""A pipeline schedule: who does what in which tick, and what follows from that."""

from dataclasses import dataclass
from functools import cached_property

from jaxdist.pipeline.work_item import Supersteps, Ticks, WorkItem, WorkKind


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """The work of all devices along the pipe axis, tick by tick."""

    name: str
    """Name of the schedule."""
    microbatches: int
    """Number of microbatches."""
    supersteps: Supersteps
    """`supersteps[b][t][device]`: what the device does in tick t of superstep b, or
    None. A superstep ends with an exchange: other devices can use its results from the
    next superstep on, the device itself at once.
    """

    @cached_property
    def ticks(self) -> Ticks:
        """`ticks[t][device]`: what the device does in tick t, or None."""
        return tuple(row for superstep in self.supersteps for row in superstep)

    @property
    def exchanges(self) -> int:
        """How often devices exchange messages."""
        return len(self.supersteps)

    @property
    def length(self) -> int:
        """Number of ticks."""
        return len(self.ticks)

    @property
    def bubble_fraction(self) -> float:
        """The bubble: the share of ticks, over all devices, without work."""
        cells = [work for row in self.ticks for work in row]
        return cells.count(None) / len(cells)

    @cached_property
    def tick_of(self) -> dict[WorkItem, int]:
        """The tick of each work item."""
        return {w: tick for tick, row in enumerate(self.ticks) for w in row if w}

    @cached_property
    def release_kind(self) -> WorkKind | None:
        """Kind of work that uses a stage's input last; None without backward passes."""
        kinds = {work.kind for row in self.ticks for work in row if work}
        # A separate gradient of the weights needs the stage's input again, after the
        # backward pass.
        if "weights" in kinds:
            return "weights"
        return "backward" if "backward" in kinds else None

    def in_flight(self, device: int) -> int:
        """Return how many inputs at most wait on a device for their backward pass."""
        return self._peak_live_inputs(device, "backward") if self.release_kind else 0

    def live_inputs(self, device: int) -> int:
        """Return how many inputs at most a device holds until `release_kind`."""
        kind = self.release_kind
        return self._peak_live_inputs(device, kind) if kind else 0

    def _peak_live_inputs(self, device: int, release_kind: WorkKind) -> int:
        held = most = 0
        for work in filter(None, (row[device] for row in self.ticks)):
            held += work.kind == "forward"
            most = max(most, held)
            # The tick of its last use still holds the input.
            held -= work.kind == release_kind
        return most
