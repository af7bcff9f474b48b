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
from typing import Self

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.step_breakdown import StageTiming
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.oracle.flow_shop import FloatArray
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.stage_times import stage_times, superstep_skew
from jaxdist.oracle.step_description import StepDescription
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.schedule_base import PipelineSchedule

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
    table = PassTable.of(passes, has_weights=split)
    # [superstep, device]: ticks of a superstep follow one another without an exchange.
    works = work_seconds(schedule, table, core_contention).sum(axis=1)
    # The busiest device decides; what it waits for in exchanges is the bubble.
    totals = np.add.accumulate(works)[-1]
    busy = float(totals.max())
    waits = sum(superstep_seconds(works, skew).tolist()) - busy
    return PipelineTime(
        busiest_device=int(totals.argmax()), busy_seconds=busy, bubble_seconds=waits
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
    passes = PassTable.of(stage_times(case, cluster), has_weights=split)
    skew = superstep_skew(case.plan, cluster)
    seconds = work_seconds(schedule, passes, core_contention(case, cluster))
    lengths = superstep_seconds(seconds.sum(axis=1), skew)
    lanes: list[list[StageTiming]] = [[] for _ in schedule.ticks[0]]
    now = 0.0
    for superstep, took, length in zip(schedule.supersteps, seconds, lengths):
        ends = [now] * len(lanes)
        for row, spent in zip(superstep, took):
            for device, work in enumerate(row):
                if work is None:
                    continue
                start = ends[device]
                ends[device] += float(spent[device])
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
        now += float(length)
    return tuple(map(tuple, lanes))


def core_contention(case: StepDescription, cluster: Cluster) -> float:
    """Return how much slower kernels are where all devices of a step compute."""
    # Of several kinds the least: what others leave to one that works is not known.
    kinds = rank_devices(cluster, case.plan.placed)
    return min(device.crowd.value for device in kinds)


def superstep_seconds(device_seconds: FloatArray, skew: float) -> FloatArray:
    """Return the seconds of supersteps, from exchange to exchange.

    Args:
        device_seconds: seconds that each device works in it, [..., device].
        skew: seconds by which the last of equally busy devices is late.

    >>> superstep_seconds(np.array([[3.0, 3.0, 0.0], [3.0, 1.0, 1.0]]), 0.5).tolist()
    [3.5, 3.0]
    """
    # The skew delays an exchange only where a second device ends at about the same time
    # as the first.
    order = np.sort(device_seconds, axis=-1)
    longest, second = order[..., -1], order[..., -2]
    return np.where(second > 0, np.maximum(longest, second + skew), longest)


@dataclass(frozen=True, kw_only=True)
class PassTable:
    """Seconds of one microbatch in each stage, by kind of work: [..., kind, stage]."""

    whole: FloatArray
    """All of them, where all devices compute."""
    comm: FloatArray
    """The part in which layers communicate, forward and for the gradients of inputs."""

    @classmethod
    def of(cls, passes: Sequence[MicrobatchTime], *, has_weights: bool) -> Self:
        """Return the table of some stages.

        Args:
            passes: seconds of each stage.
            has_weights: whether gradients of weights are works of their own.
        """
        late = np.array([one.weights * has_weights for one in passes])
        back = np.array([one.backward for one in passes]) - late
        comm = [[one.forward_comm for one in passes]]
        comm += [[one.backward_comm for one in passes], [0.0] * len(passes)]
        whole = np.array([[one.forward for one in passes], back, late])
        return cls(whole=whole, comm=np.array(comm))


def work_seconds(
    schedule: PipelineSchedule, passes: PassTable, core_contention: float
) -> FloatArray:
    """Return the seconds of each device's work, [..., superstep, tick, device].

    Args:
        schedule: what devices do.
        passes: of its stages.
        core_contention: slowdown of a kernel where all devices compute, at least 1.
    """
    # work_table is [superstep, tick, device, (kind, stage)]; a kind below 0 is no work.
    kind, stage = np.moveaxis(schedule.work_table, -1, 0)
    works = kind >= 0
    # Kernels of idle devices leave their share of the processor cores to the others.
    share = np.maximum(1 / core_contention, works.any(axis=1).mean(axis=-1))
    comm = passes.comm[..., kind, stage]
    computed = passes.whole[..., kind, stage] - comm
    found: FloatArray = np.where(works, share[:, None, None] * computed + comm, 0.0)
    return found
