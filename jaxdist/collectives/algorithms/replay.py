"""Simulation of schedules in NumPy: what every rank holds at the end, without devices.

It defines what a schedule means: the executor is tested against it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule


def simulate_schedule(
    schedule: CollectiveSchedule, chunks: NDArray[Any]
) -> NDArray[Any]:
    """Run a schedule.

    Args:
        schedule: P ranks, C chunks.
        chunks: `[P, C, ...]`, the chunks of each rank.

    Returns:
        The same shape: what each rank holds at the end.
    """
    state = chunks.copy()
    for step in schedule.steps:
        # Everything is sent as it was before the step.
        spans = [(t, slice(t.start, t.start + t.count)) for t in step.transfers]
        sent = [state[t.source, span].copy() for t, span in spans]
        for (transfer, span), moved in zip(spans, sent):
            held = state[transfer.target, span]
            state[transfer.target, span] = held + moved if transfer.adds else moved
    return state


def count_contributions(schedule: CollectiveSchedule) -> NDArray[np.int64]:
    """Count how often each rank's array is in what each rank holds at the end.

    Returns:
        `[P, C, P]`: by holder, by chunk, by origin. All ones is a sum over all ranks,
        whatever the numbers are.

    >>> from jaxdist.collectives.algorithms.rings import ring
    >>> bool((count_contributions(ring(3)) == 1).all())
    True
    """
    ranks, chunks = schedule.ranks, schedule.chunks
    # Each rank starts with one copy of its own array, under its own origin.
    own = np.eye(ranks, dtype=np.int64)[:, None, :].repeat(chunks, axis=1)
    return simulate_schedule(schedule, own).astype(np.int64)
