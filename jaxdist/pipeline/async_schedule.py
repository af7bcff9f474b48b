"""Asynchronous schedules: who does what in which tick, on which version of the weights.

Microbatches follow each other without a flush; a stage updates its weights as soon as
the gradients of a *round* of microbatches are there. A *version* of its weights is the
number of rounds that they have seen.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from jaxdist.pipeline.schedule_base import PipelineSchedule, WorkItem, backward, forward


@dataclass(frozen=True, kw_only=True)
class AsyncSchedule(PipelineSchedule):
    """The ticks from the first forward pass to the last update."""

    replicas: tuple[int, ...]
    """Devices of each stage; microbatch m goes to replica m % replicas."""
    update_microbatches: tuple[int, ...]
    """Microbatches in one update, by stage: their mean gradient is applied."""
    forward_versions: tuple[tuple[int, ...], ...]
    """`[stage][microbatch]`: the version that its forward pass reads."""
    backward_versions: tuple[tuple[int, ...], ...]
    """`[stage][microbatch]`: the version that its backward pass reads."""

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
        return tuple(
            tuple(
                max(
                    self.tick_of[backward(stage, micro)]
                    for micro in range(first, first + size)
                )
                for first in range(0, self.microbatches, size)
            )
            for stage, size in enumerate(self.update_microbatches)
        )

    @property
    def title(self) -> str:
        """Name the schedule and its sizes, in a line."""
        replicas = "-".join(map(str, self.replicas))
        return f"{self.name}, stages of {replicas}, {self.microbatches} microbatches"

    def lane(self, device: int) -> str:
        """Name the row of a device: `0.1` is the second replica of stage 0."""
        stage = self.stage_of(device)
        replica = f".{device - sum(self.replicas[:stage])}"
        return f"stage {stage}{replica if self.replicas[stage] > 1 else ''}"

    def label(self, work: WorkItem) -> str:
        """Name a work item by its microbatch."""
        return str(work.microbatch)

    def note(self, device: int) -> str:
        """Say how many microbatches and versions a device holds."""
        versions = self.live_versions(self.stage_of(device))
        kept = f"{versions} version{'s' * (versions > 1)}"
        return f"{self.in_flight(device)} in flight, {kept}"

    def device_of(self, stage: int, micro: int) -> int:
        """Return the device that runs a microbatch on a stage."""
        return sum(self.replicas[:stage]) + micro % self.replicas[stage]

    def stage_of(self, device: int) -> int:
        """Return the stage that a device is a replica of."""
        lanes = [s for s, replicas in enumerate(self.replicas) for _ in range(replicas)]
        return lanes[device]

    def version_at(self, stage: int, tick: int) -> int:
        """Return the newest weight version that a tick can read."""
        # An update at the end of a tick can be read from the next tick on.
        return bisect_left(self.update_ticks[stage], tick)

    def staleness(self, stage: int, micro: int) -> int:
        """Return how many updates old a microbatch's weights are at its own update."""
        # The version that the microbatch's own update is made from is the number of
        # rounds before it.
        return (
            micro // self.update_microbatches[stage]
            - self.forward_versions[stage][micro]
        )

    def live_versions(self, stage: int) -> int:
        """Return how many weight versions each device of a stage holds at most."""
        uses = []
        for micro in range(self.microbatches):
            version = self.forward_versions[stage][micro]
            uses.append((self.tick_of[forward(stage, micro)], version))
            version = self.backward_versions[stage][micro]
            uses.append((self.tick_of[backward(stage, micro)], version))
        # From the last tick back: a tick has to hold all versions from the oldest that
        # it or a later tick reads up to the newest.
        oldest, most = self.version_at(stage, self.length), 1
        for tick, version in sorted(uses, reverse=True):
            oldest = min(oldest, version)
            most = max(most, self.version_at(stage, tick) - oldest + 1)
        return most
