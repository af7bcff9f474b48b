"""Eager 1F1B: every beat has a forward and a backward pass of each device.

Devices that work in lock-step pay for the longest work of a tick. In 1F1B neighbours
are out of phase: while one goes forward the next goes backward, and a microbatch takes
2 max(F, B) instead of F + B. Here all go forward in the same tick and backward in the
next, and hand on what they made behind both. A step takes

    (v M + S - 1) (F + B) / v

of S devices with v chunks and M microbatches: no more than GPipe, with what
(v + 1) S - 1 chunks keep at most where 1F1B keeps v S. Stages go ahead of their
backward passes by twice as much as in 1F1B (Zhuang et al. 2022, arXiv 2211.05322,
"eager-1F1B", who hide messages behind it).
"""

from jaxdist.pipeline.work_item import (
    Superstep,
    Supersteps,
    TickRow,
    WorkItem,
    backward,
    forward,
)


def eager_1f1b(devices: int, microbatches: int, chunks: int) -> Supersteps:
    """Return who does what in which beat.

    Args:
        devices: devices along the pipe, S.
        microbatches: microbatches of a step, M; with more than one chunk in a multiple
            of S.
        chunks: chunks of the network on each device, v.

    >>> [len(beat) for beat in eager_1f1b(devices=2, microbatches=3, chunks=1)]
    [1, 2, 2, 2, 1]
    """
    last = devices * chunks - 1
    ahead: dict[int, list[WorkItem]] = {}
    back: dict[int, list[WorkItem]] = {}
    for micro in range(microbatches):
        enters = _entry_superstep(micro, devices, chunks)
        for stage in range(last + 1):
            ahead.setdefault(enters + stage, []).append(forward(stage, micro))
            returns = enters + 2 * last - stage
            back.setdefault(returns, []).append(backward(stage, micro))
    return tuple(
        _superstep(devices, ahead.get(beat, []), back.get(beat, []))
        for beat in range(max(back) + 1)
    )


def _entry_superstep(micro: int, devices: int, chunks: int) -> int:
    """Return the beat in which a microbatch is on the first stage.

    Microbatches go in groups of S: the first chunk of each device, then the second.
    """
    group, place = divmod(micro, devices)
    return group * devices * chunks + place


def _superstep(devices: int, *kinds: list[WorkItem]) -> Superstep:
    return tuple(_tick_row(devices, works) for works in kinds if works)


def _tick_row(devices: int, works: list[WorkItem]) -> TickRow:
    found = {work.stage % devices: work for work in works}
    return tuple(found.get(device) for device in range(devices))
