"""Lanes: when each device along the pipe axis works for which stage, as predicted."""

from jaxdist.core.cluster import Cluster
from jaxdist.core.measured import Cell
from jaxdist.oracle.case import Case
from jaxdist.oracle.replay import work_seconds
from jaxdist.oracle.work import stage_seconds
from jaxdist.pipeline.planned import timetable

Lanes = tuple[tuple[Cell, ...], ...]
"""One for each device along the pipe axis."""


def planned_lanes(case: Case, cluster: Cluster) -> Lanes:
    """Return the work of a step in time; none where the network is not cut.

    All devices go from tick to tick together; what is moved takes no time here.

    Args:
        case: network, layout and traffic.
        cluster: machines.

    Raises:
        BadInput: the device has no speed for the dtype.
    """
    if case.plan.stages == 1:
        return ()
    ticks = timetable(case.plan, case.microbatches).ticks
    has_weights = any(w and w.kind == "weights" for row in ticks for w in row)
    stages, late = stage_seconds(case, cluster.device), 1 + cluster.jitter.value
    lanes: list[list[Cell]] = [[] for _ in ticks[0]]
    now = 0.0
    for row in ticks:
        took = [late * work_seconds(w, stages, has_weights) if w else 0.0 for w in row]
        for lane, work, seconds in zip(lanes, row, took, strict=True):
            if work is not None:
                lane.append(
                    Cell(
                        kind=work.kind,
                        stage=work.stage,
                        micro=work.micro,
                        start=now,
                        end=now + seconds,
                    )
                )
        now += max(took)
    return tuple(map(tuple, lanes))
