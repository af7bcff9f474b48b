"""Reading: what the devices of one stage move, of a program for all stages.

A compiled pipeline has the collectives of every stage, in loops that turn once or not
at all. A device runs those of its own stages, once for each microbatch.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from jaxdist.collectives.hlo import Move
from jaxdist.pipeline.stages import Stages

_STAGE: Final = re.compile(r"stage(\d+)\.(?:forward|backward)")


def own_moves(
    moves: Iterable[Move], stages: Stages, device: int, microbatches: int
) -> Iterator[Move]:
    """Yield what a device of a pipeline moves in one step.

    Args:
        moves: of the compiled program, those of stages once for each tick.
        stages: which stages the device has.
        device: along the pipe axis.
        microbatches: of a step.
    """
    for move in moves:
        found = _STAGE.search("/".join(move.loops))
        if found is None:
            yield move
        elif stages.device_of(int(found[1])) == device:
            once = move.payload // move.trips
            yield replace(
                move, payload=microbatches * once, trips=microbatches, bounded=True
            )
