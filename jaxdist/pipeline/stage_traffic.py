"""Reading: what the devices of one stage move, of a program for all stages.

A compiled pipeline has the collectives of every stage, in loops that turn once or not
at all. A device runs those of its own stages, once for each microbatch.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.axes import sub_axis_name
from jaxdist.pipeline.async_executor import UPDATE_SCOPE
from jaxdist.pipeline.plan_schedule import DeviceWorkCounts
from jaxdist.pipeline.stage_placement import StagePlacement

_STAGE: Final = re.compile(r"stage(\d+)\.(?:forward|backward)")


def device_collectives(
    collectives: Iterable[CollectiveOp],
    placement: StagePlacement,
    device: int,
    counts: DeviceWorkCounts,
    supersteps: int,
) -> Iterator[CollectiveOp]:
    """Yield what a device of a pipeline moves in one step.

    Args:
        collectives: of the compiled program, those of stages once for each beat.
        placement: which stages the device has.
        device: along the pipe axis.
        counts: how often it does what in a step.
        supersteps: of the timetable.
    """
    replicas = placement.replicas_of(device)
    for move in collectives:
        loops = "/".join(move.loops)
        found = _STAGE.search(loops)
        if move.has_uneven_groups and replicas == 1:
            continue
        seen = _within_replicas(replicas, move) if move.has_uneven_groups else move
        if UPDATE_SCOPE in loops:
            yield _scale_trips(counts.updates, supersteps, seen)
        elif found is None:
            yield seen
        elif int(found[1]) in placement.stages_of(device):
            yield _scale_trips(counts.microbatches, supersteps, seen)


def _within_replicas(replicas: int, move: CollectiveOp) -> CollectiveOp:
    """Return a sum among replicas of stages as a device sees it that is one of some."""
    axes = (sub_axis_name("pipe", replicas),)
    return replace(move, axes=axes, group_size=replicas, has_uneven_groups=False)


def _scale_trips(turns: int, beats: int, move: CollectiveOp) -> CollectiveOp:
    """Return what is moved in so many turns of a stage, where each beat has one.

    Loops inside of a turn, over the steps of an LSTM, count as often as they go round.
    """
    payload, trips = move.payload // beats, move.trip_count // beats
    return replace(
        move, payload=turns * payload, trip_count=turns * trips, bounded=True
    )
