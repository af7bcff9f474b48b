"""An asynchronous schedule as a table: who does what in which tick, on which weights.

Microbatches follow each other without a flush; a stage changes its weights as soon as
the gradients of a *round* of microbatches are there. A *version* of its weights is the
number of rounds that they have seen.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxdist.pipeline import schedule_base
from jaxdist.pipeline.schedule_base import PipelineSchedule
from jaxdist.pipeline.work_item import WorkItem, backward, forward


@dataclass(frozen=True, kw_only=True)
class AsyncSchedule(PipelineSchedule):
    """Some microbatches from the first forward to the last update."""

    replicas: tuple[int, ...]
    """Devices of each stage; microbatch m goes to replica m % replicas."""
    update_microbatches: tuple[int, ...]
    """Microbatches in one update, by stage: their mean gradient is applied."""
    forward_versions: tuple[tuple[int, ...], ...]
    """`[stage][microbatch]`: the version that its forward takes."""
    backward_versions: tuple[tuple[int, ...], ...]
    """`[stage][microbatch]`: the version that its backward takes."""

    @property
    def stages(self) -> int:
        """Stages of the network."""
        return len(self.replicas)

    @property
    def devices(self) -> int:
        """Devices of all stages, those of stage 0 first."""
        return sum(self.replicas)

    @cached_property
    def update_ticks(self) -> tuple[tuple[int, ...], ...]:
        """`[stage][round]`: the tick at whose end its update is applied."""

        def last(stage: int, micros: range) -> int:
            return max(self.tick_of[backward(stage, micro)] for micro in micros)

        return tuple(
            tuple(
                last(stage, range(first, first + size))
                for first in range(0, self.microbatches, size)
            )
            for stage, size in enumerate(self.update_microbatches)
        )

    @property
    def title(self) -> str:
        """What is drawn, in a line."""
        replicas = "-".join(map(str, self.replicas))
        return f"{self.name}, stages of {replicas}, {self.microbatches} microbatches"

    def lane(self, device: int) -> str:
        """Name the row of a device: `0.1` is the second replica of stage 0."""
        stage = self.stage_of(device)
        replica = f".{device - sum(self.replicas[:stage])}"
        return f"stage {stage}{replica if self.replicas[stage] > 1 else ''}"

    def label(self, work: WorkItem) -> str:
        """Name a work in its row."""
        return str(work.microbatch)

    def note(self, device: int) -> str:
        """Say what a device holds."""
        versions = self.live_versions(self.stage_of(device))
        kept = f"{versions} version{'s' * (versions > 1)}"
        return f"{self.in_flight(device)} in flight, {kept}"

    def device_of(self, stage: int, micro: int) -> int:
        """Return the device that a microbatch's work of a stage is done on."""
        return sum(self.replicas[:stage]) + micro % self.replicas[stage]

    def stage_of(self, device: int) -> int:
        """Return the stage that a device is a replica of."""
        lanes = [s for s, replicas in enumerate(self.replicas) for _ in range(replicas)]
        return lanes[device]

    def version_at(self, stage: int, tick: int) -> int:
        """Return the newest version that a tick can take."""
        return bisect_left(self.update_ticks[stage], tick)

    def staleness(self, stage: int, micro: int) -> int:
        """Return the updates that a forward's weights lack when its own is applied."""
        return (
            micro // self.update_microbatches[stage]
            - self.forward_versions[stage][micro]
        )

    def in_flight(self, device: int) -> int:
        """Return how many inputs at most wait on a device for their backward."""
        return schedule_base.peak_live_inputs(
            schedule_base.device_column(self.ticks, device), "backward"
        )

    def live_versions(self, stage: int) -> int:
        """Return how many versions a stage keeps at most, each of its devices.

        From the oldest that a work in this tick or later takes up to the newest.
        """
        needed, most = self.version_at(stage, self.length), 1
        uses = sorted(self._version_uses(stage), reverse=True)
        for tick, version in uses:
            needed = min(needed, version)
            most = max(most, self.version_at(stage, tick) - needed + 1)
        return most

    def _version_uses(self, stage: int) -> Iterator[tuple[int, int]]:
        """Yield the tick and version of each work of a stage."""
        for micro in range(self.microbatches):
            ahead = self.forward_versions[stage][micro]
            yield self.tick_of[forward(stage, micro)], ahead
            back = self.backward_versions[stage][micro]
            yield self.tick_of[backward(stage, micro)], back
