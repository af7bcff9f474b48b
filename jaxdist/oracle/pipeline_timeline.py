"""Lanes: when each device along the pipe axis works for which stage, as predicted."""

from collections.abc import Iterator

from jaxdist.core.cluster import Cluster
from jaxdist.core.step_breakdown import StageTiming
from jaxdist.oracle.schedule_times import (
    contention_factor,
    superstep_seconds,
    work_seconds,
)
from jaxdist.oracle.stage_times import stage_times
from jaxdist.oracle.stage_transfers import superstep_skew
from jaxdist.oracle.step_description import StepDescription
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.pipeline.work_item import Superstep, WorkItem

PipelineTimeline = tuple[tuple[StageTiming, ...], ...]
"""One for each device along the pipe axis."""


def predict_timeline(case: StepDescription, cluster: Cluster) -> PipelineTimeline:
    """Return the work of a step in time; none where the network is not cut.

    All devices go from beat to beat together; what stages hand on takes no time here.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    if case.plan.stages == 1:
        return ()
    made = plan_schedule(case.plan, case.microbatches)
    has_weights = any(w and w.kind == "weights" for row in made.ticks for w in row)
    stages, crowd = stage_times(case, cluster), cluster.device.crowd.value
    skew = superstep_skew(case.plan, cluster)
    lanes: list[list[StageTiming]] = [[] for _ in made.ticks[0]]
    now = 0.0
    for beat in made.supersteps:
        ends, share = [now] * len(lanes), contention_factor(beat, crowd)
        for device, work in _work_items(beat):
            seconds = work_seconds(work, stages, has_weights, share)
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
        now += superstep_seconds([end - now for end in ends], skew)
    return tuple(map(tuple, lanes))


def _work_items(superstep: Superstep) -> Iterator[tuple[int, WorkItem]]:
    """Yield the works of a beat, first to last, with their devices."""
    for row in superstep:
        for device, work in enumerate(row):
            if work is not None:
                yield device, work
