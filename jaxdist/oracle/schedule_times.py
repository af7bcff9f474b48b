"""A pipeline schedule played with the seconds of uneven stages.

The program that runs a schedule goes from exchange to exchange with all devices
together, so a superstep is as long as its slowest device:

    step = sum over supersteps of max(longest, second + skew)

of the seconds that devices work in it, each of them share(superstep) of what the work
takes where all devices compute,

    share(superstep) = max(1 / contention, devices that work in it / devices)

Where devices share processor cores (`contention` above 1), those that work are faster
while others rest, as where a pipeline fills or drains; communication is not. Devices
that work equally long do not end together (`skew`), and the exchange waits for the last
of them; not so where one works much longer than the others. The bubble is the rest of
the step for the busiest device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.step_breakdown import StageTiming
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.stage_times import stage_times, superstep_skew
from jaxdist.oracle.step_description import StepDescription
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.schedule_base import Superstep, WorkItem

PipelineTimeline = tuple[tuple[StageTiming, ...], ...]
"""The work of a step in time, one row for each rank of the pipe axis."""


@dataclass(frozen=True, kw_only=True)
class PipelineTime:
    """The busy and idle seconds of a step's busiest device."""

    busiest_device: int
    """Its rank of the pipe axis."""
    busy_seconds: float
    """Seconds that it works."""
    bubble_seconds: float
    """Seconds that it waits for others."""

    @property
    def seconds(self) -> float:
        """Seconds of all supersteps."""
        return self.busy_seconds + self.bubble_seconds


def schedule_time(
    plan: Plan,
    microbatches: int,
    passes: Sequence[MicrobatchTime],
    core_contention: float = 1.0,
    skew: float = 0.0,
) -> PipelineTime:
    """Return how long the busiest device works in a step, and how long it waits.

    Args:
        plan: the layout.
        microbatches: of a step.
        passes: seconds of each stage in one microbatch, where all devices compute.
        core_contention: slowdown of a kernel where all devices compute, at least 1.
        skew: seconds by which the last of equally busy devices is late.
    """
    if plan.stages == 1:
        (one,) = passes
        busy = microbatches * (one.forward + one.backward)
        return PipelineTime(busiest_device=0, busy_seconds=busy, bubble_seconds=0.0)
    schedule = plan_schedule(plan, microbatches)
    split = schedule.release_kind == "weights"
    works: list[list[float]] = []
    for superstep in schedule.supersteps:
        done = _work_seconds(superstep, passes, split, core_contention)
        works.append([sum(seconds for _, seconds in own) for own in done])
    # The busiest device decides; what it waits for in exchanges is the bubble.
    totals = [sum(own) for own in zip(*works, strict=True)]
    busy = max(totals)
    waits = sum(superstep_seconds(own, skew) for own in works) - busy
    return PipelineTime(
        busiest_device=totals.index(busy), busy_seconds=busy, bubble_seconds=waits
    )


def predict_timeline(case: StepDescription, cluster: Cluster) -> PipelineTimeline:
    """Return the work of a step in time; none where the network is not cut.

    All devices go from exchange to exchange together; the exchange itself takes no time
    here.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    if case.plan.stages == 1:
        return ()
    schedule = plan_schedule(case.plan, case.microbatches)
    split = schedule.release_kind == "weights"
    stages, contention = stage_times(case, cluster), core_contention(case, cluster)
    skew = superstep_skew(case.plan, cluster)
    lanes: list[list[StageTiming]] = [[] for _ in schedule.ticks[0]]
    now = 0.0
    for superstep in schedule.supersteps:
        ends = [now] * len(lanes)
        done = _work_seconds(superstep, stages, split, contention)
        for device, works in enumerate(done):
            for work, seconds in works:
                start, ends[device] = ends[device], ends[device] + seconds
                lanes[device].append(
                    StageTiming(
                        kind=work.kind,
                        stage=work.stage,
                        micro=work.microbatch,
                        start=start,
                        end=ends[device],
                    )
                )
        # The next superstep begins when the slowest device is done, for all devices.
        now += superstep_seconds([end - now for end in ends], skew)
    return tuple(map(tuple, lanes))


def core_contention(case: StepDescription, cluster: Cluster) -> float:
    """Return how much slower kernels are where all devices of a step compute."""
    # Of several kinds the least: what others leave to one that works is not known.
    kinds = rank_devices(cluster, case.plan.placed)
    return min(device.crowd.value for device in kinds)


def superstep_seconds(device_seconds: Sequence[float], skew: float) -> float:
    """Return the seconds of a superstep, from exchange to exchange.

    Args:
        device_seconds: seconds that each device works in it.
        skew: seconds by which the last of equally busy devices is late.

    >>> superstep_seconds([3.0, 3.0, 0.0], 0.5), superstep_seconds([3.0, 1.0, 1.0], 0.5)
    (3.5, 3.0)
    """
    # The skew delays an exchange only where a second device ends at about the same time
    # as the first.
    *_, second, longest = sorted((0.0, *device_seconds))
    return max(longest, second + skew) if second else longest


def _work_seconds(
    superstep: Superstep,
    passes: Sequence[MicrobatchTime],
    has_weights: bool,
    core_contention: float,
) -> list[list[tuple[WorkItem, float]]]:
    """Return the work items of each device in a superstep, with their seconds."""
    devices = list(zip(*superstep, strict=True))
    # Kernels of idle devices leave their share of the processor cores to the others.
    working = sum(any(works) for works in devices)
    share = max(1 / core_contention, working / len(devices))
    found = []
    for works in devices:
        own = []
        for work in filter(None, works):
            stage = passes[work.stage]
            # Layers communicate in forward passes and for the gradients of inputs.
            whole, comm = stage.forward, stage.forward_comm
            if work.kind == "backward":
                whole, comm = stage.backward, stage.backward_comm
                whole -= stage.weights if has_weights else 0.0
            elif work.kind == "weights":
                whole, comm = stage.weights, 0.0
            own.append((work, share * (whole - comm) + comm))
        found.append(own)
    return found
