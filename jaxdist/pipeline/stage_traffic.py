"""Stage traffic: what the devices of one stage move, in a program for all stages.

A compiled pipeline has the collectives of every stage, in loops of one iteration or
none. A device runs those of its own stages, once for each microbatch.
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
    """Yield the collectives of one device of a pipeline in one step.

    Args:
        collectives: of the compiled program, those of stages once for each superstep.
        placement: which stages the device has.
        device: along the pipe axis.
        counts: how often it does what in a step.
        supersteps: of the schedule.
    """
    # A device without replicas takes no part in sums over them.
    replicas = placement.replicas_of(device)
    for op in collectives:
        move, loops = op, "/".join(op.loops)
        if op.has_uneven_groups:
            # A sum over the replicas of stages, which differ in number.
            if replicas == 1:
                continue
            axes = (sub_axis_name("pipe", replicas),)
            move = replace(op, axes=axes, group_size=replicas, has_uneven_groups=False)
        found = _STAGE.search(loops)
        if UPDATE_SCOPE in loops:
            count = counts.updates
        elif found is None:
            yield move
            continue
        elif int(found[1]) in placement.stages_of(device):
            count = counts.microbatches
        else:
            continue
        # The program counts one iteration a superstep. Loops inside of it, over the
        # steps of an LSTM, count as often as they go round.
        yield replace(
            move,
            payload=count * (move.payload // supersteps),
            trip_count=count * (move.trip_count // supersteps),
            bounded=True,
        )
