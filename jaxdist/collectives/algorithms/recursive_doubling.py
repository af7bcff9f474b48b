"""Recursive doubling: partners exchange everything they have, at distances 1, 2, 4, ...

P = 2^m ranks, S bytes:

    m steps,  m S sent by every rank

It has the fewest steps, so it is good for short arrays. Other numbers of ranks are
folded: two steps and S bytes more, for some ranks.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4.
"""

from collections.abc import Sequence

import numpy as np

from jaxdist.collectives.algorithms.halving_doubling import (
    hypercube,
    hypercube_distances,
)
from jaxdist.collectives.algorithms.non_power_of_two import fold_to_power_of_two
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    check_ranks,
)
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers


def recursive_doubling(ranks: int) -> CollectiveSchedule:
    """Return recursive doubling; the array is one chunk.

    Args:
        ranks: any number P.

    >>> len(recursive_doubling(8).steps), len(recursive_doubling(9).steps)
    (3, 5)
    """
    steps = fold_to_power_of_two(
        range(check_ranks(ranks)), range(1), recursive_doubling_steps
    )
    return CollectiveSchedule(
        name="recursive_doubling", ranks=ranks, chunks=1, steps=steps
    )


def recursive_doubling_steps(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks over 2^m ranks."""
    # Both partners add the same two numbers, so they get the same bits.
    ranks, starts, count = np.asarray(group), piece.start, len(piece)
    return tuple(
        ScheduleStep(
            uniform_transfers(
                ranks, ranks[other], starts=starts, count=count, adds=True
            )
        )
        for other in hypercube(len(group), hypercube_distances(len(group)))
    )
