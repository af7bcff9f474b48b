"""Replay: a schedule's table with the seconds of uneven stages.

The program that runs a table goes from exchange to exchange with all devices together,
so a beat is as long as who works longest in it:

    step = sum over beats of max(longest, second + skew)

of the seconds that devices work in it, share(beat) of what they take alone to each,

    share(beat) = max(1 / crowd, devices that work in it / devices)

Where devices share processors (`crowd` above 1), those that work are faster while
others rest, as where a pipeline fills or drains; what layers say to other devices is
not. Devices that work as long as each other do not end together (`skew`), and who waits
for all of them waits for the last; nobody does where one works for much longer than the
others. The bubble is what is left of a step for the device that works longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.plan import Plan
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.work_item import Superstep, WorkItem


@dataclass(frozen=True, kw_only=True)
class PipelineTime:
    """A step as its table plays: how devices along the pipe axis hold each other up."""

    busiest_device: int
    """Who works longest."""
    busy_seconds: float
    """Seconds that it works."""
    bubble_seconds: float
    """Seconds that it waits for others."""

    @property
    def seconds(self) -> float:
        """Seconds of all beats."""
        return self.busy_seconds + self.bubble_seconds


def schedule_time(
    plan: Plan,
    microbatches: int,
    stage_times: Sequence[MicrobatchTime],
    core_contention: float = 1.0,
    skew: float = 0.0,
) -> PipelineTime:
    """Return what the busiest device works in a step, and what it waits.

    Args:
        plan: the layout.
        microbatches: of a step.
        stage_times: seconds of each stage in one microbatch, where all devices compute.
        core_contention: as of a device.
        skew: seconds by which the last of those that end together is late.
    """
    if plan.stages == 1:
        (one,) = stage_times
        busy = microbatches * (one.forward + one.backward)
        return PipelineTime(busiest_device=0, busy_seconds=busy, bubble_seconds=0.0)
    made = plan_schedule(plan, microbatches)
    has_weights = any(w and w.kind == "weights" for row in made.ticks for w in row)

    def took(beat: Superstep) -> list[float]:
        share = contention_factor(beat, core_contention)
        return [
            sum(work_seconds(w, stage_times, has_weights, share) for w in works if w)
            for works in zip(*beat, strict=True)
        ]

    beats = [took(beat) for beat in made.supersteps]
    works = [sum(own) for own in zip(*beats, strict=True)]
    busy = max(works)
    waits = sum(superstep_seconds(own, skew) for own in beats) - busy
    return PipelineTime(
        busiest_device=works.index(busy), busy_seconds=busy, bubble_seconds=waits
    )


def superstep_seconds(device_seconds: Sequence[float], skew: float) -> float:
    """Return the seconds of a beat, from exchange to exchange.

    Args:
        device_seconds: seconds that each device works in it.
        skew: seconds by which the last of those that end together is late.

    >>> superstep_seconds([3.0, 3.0, 0.0], 0.5), superstep_seconds([3.0, 1.0, 1.0], 0.5)
    (3.5, 3.0)
    """
    *_, second, longest = sorted((0.0, *device_seconds))
    return max(longest, second + skew) if second else longest


def contention_factor(superstep: Superstep, core_contention: float) -> float:
    """Return the part of its seconds that a kernel takes where some devices rest.

    Args:
        superstep: says which work.
        core_contention: times as long as alone kernels take where all do.
    """
    working = sum(any(works) for works in zip(*superstep, strict=True))
    return max(1 / core_contention, working / len(superstep[0]))


def work_seconds(
    item: WorkItem,
    stage_times: Sequence[MicrobatchTime],
    has_weights: bool,
    contention_factor: float,
) -> float:
    """Return what one work takes; gradients of weights are half of a backward pass.

    Args:
        item: of a table.
        stage_times: seconds of each stage in one microbatch.
        has_weights: whether those gradients are works of their own.
        contention_factor: of its beat.
    """
    stage = stage_times[item.stage]
    if item.kind == "forward":
        return (
            contention_factor * (stage.forward - stage.forward_comm)
            + stage.forward_comm
        )
    whole = (
        contention_factor * (stage.backward - stage.backward_comm) + stage.backward_comm
    )
    return whole / (2 if has_weights else 1)
