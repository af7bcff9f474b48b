"""Schedules of collectives of any kind, made from those of all-reduces."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jaxdist.collectives.algorithms.rings import ring
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule, ScheduleStep
from jaxdist.collectives.algorithms.vectorized_transfers import (
    TransferBlock,
    uniform_transfers,
    vectorize_transfers,
)
from jaxdist.network.schedules_by_name import schedule_by_name


def collective_schedule(kind: str, algorithm: str, ranks: int) -> CollectiveSchedule:
    """Return the schedule of a collective of any kind.

    A ring all-reduce is a reduce-scatter and then an all-gather, and so are all those
    whose first steps leave each rank with its part of the sum: these are cut in two.
    Of all others reduce-scatters and all-gathers are rings.

    Args:
        kind: as the compiler names it.
        algorithm: of all-reduces.
        ranks: P.

    >>> [len(collective_schedule(kind, "halving_doubling", 8).steps)
    ...  for kind in ("all-reduce", "all-gather", "all-to-all")]
    [6, 3, 7]
    """
    if kind == "all-to-all":
        # In step k rank r has the rank k places on: none sends or receives twice.
        each = np.arange(ranks)
        steps = tuple(
            ScheduleStep(
                uniform_transfers(
                    each, np.roll(each, -hop), starts=0, count=1, adds=False
                )
            )
            for hop in range(1, ranks)
        )
        return CollectiveSchedule(name=kind, ranks=ranks, chunks=ranks, steps=steps)
    whole = schedule_by_name(algorithm, ranks)
    if kind == "all-reduce":
        return whole
    if not _has_halves(whole):
        whole = ring(ranks)
    # Steps that add are the reduce-scatter, those that copy are the all-gather.
    adds = kind == "reduce-scatter"
    half = tuple(
        step for step in whole.steps if step_blocks(step)[0].messages.adds == adds
    )
    return replace(whole, name=f"{kind}, {whole.name}", steps=half)


def _has_halves(schedule: CollectiveSchedule) -> bool:
    """Tell whether an all-reduce is a reduce-scatter followed by an all-gather."""
    received = np.zeros(schedule.ranks, np.int64)
    copies = False
    for step in schedule.steps:
        kinds = {part.messages.adds for part in step_blocks(step)}
        # Sums after the first copy, or both in one step, cannot be cut apart.
        if len(kinds) != 1 or (copies and kinds == {True}):
            return False
        copies = kinds == {False}
        if copies:
            for part in step_blocks(step):
                np.add.at(received, part.messages.targets, part.messages.counts)
    # A rank that has its part of the sum lacks all other parts, and no more.
    lacking = schedule.chunks * (schedule.ranks - 1)
    return bool((received * schedule.ranks == lacking).all())


def step_blocks(step: ScheduleStep) -> Sequence[TransferBlock]:
    """Return the messages of a step as columns, sums and copies apart."""
    return vectorize_transfers(step.transfers).blocks
