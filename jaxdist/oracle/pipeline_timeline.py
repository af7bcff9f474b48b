"""Lanes: when each device along the pipe axis works for which stage, as predicted."""

from collections.abc import Iterator

from jaxdist.core.cluster import Cluster
from jaxdist.core.step_breakdown import StageTiming
from jaxdist.oracle.schedule_times import lasting, share_in, work_seconds
from jaxdist.oracle.stage_times import passes
from jaxdist.oracle.stage_transfers import late_in
from jaxdist.oracle.step_description import StepDescription
from jaxdist.pipeline.plan_schedule import timetable
from jaxdist.pipeline.work_item import Superstep, WorkItem

PipelineTimeline = tuple[tuple[StageTiming, ...], ...]
"""One for each device along the pipe axis."""


def planned_lanes(case: StepDescription, cluster: Cluster) -> PipelineTimeline:
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
    made = timetable(case.plan, case.microbatches)
    has_weights = any(w and w.kind == "weights" for row in made.ticks for w in row)
    stages, crowd = passes(case, cluster), cluster.device.crowd.value
    skew = late_in(case.plan, cluster)
    lanes: list[list[StageTiming]] = [[] for _ in made.ticks[0]]
    now = 0.0
    for beat in made.beats:
        ends, share = [now] * len(lanes), share_in(beat, crowd)
        for device, work in _works(beat):
            seconds = work_seconds(work, stages, has_weights, share)
            start, ends[device] = ends[device], ends[device] + seconds
            lanes[device].append(
                StageTiming(
                    kind=work.kind,
                    stage=work.stage,
                    micro=work.micro,
                    start=start,
                    end=ends[device],
                )
            )
        now += lasting([end - now for end in ends], skew)
    return tuple(map(tuple, lanes))


def _works(beat: Superstep) -> Iterator[tuple[int, WorkItem]]:
    """Yield the works of a beat, first to last, with their devices."""
    for row in beat:
        for device, work in enumerate(row):
            if work is not None:
                yield device, work
