"""Striped halving-doubling: several at once, each through the dims in another order.

The array is cut into m = log2 P stripes. Stripe j walks the dims of the hypercube of
ranks in the order j, j+1, ..., m-1, 0, ..., j-1. So in every step a rank sends m
messages, one along each dim, and all links between switches are in use all the time.
P = 2^m ranks, S bytes:

    2 m steps of m messages,  2 (P-1)/P S sent by every rank

A message of round k has S / (m 2^(k+1)) bytes: it is for large arrays, and for ranks
that send to several others at once.

Source: own; of the family of multi-port algorithms (bucket, Swing).
"""

from jaxdist.collectives.algorithms.halving import halve_and_double, hypercube
from jaxdist.collectives.algorithms.halving_doubling import hypercube_distances
from jaxdist.collectives.algorithms.non_power_of_two import log2_ranks
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    merge_concurrent,
    split_chunks,
)


def striped_halving_doubling(ranks: int) -> CollectiveSchedule:
    """Return striped halving-doubling.

    Args:
        ranks: a power of two.

    Raises:
        BadInput: another number.

    >>> [(t.source, t.target) for t in striped_halving_doubling(8).steps[0].transfers
    ...  if t.source == 0]
    [(0, 1), (0, 2), (0, 4)]
    """
    dims = max(log2_ranks("striped_halving_doubling", ranks), 1)
    chunks, hops = dims * ranks, hypercube_distances(ranks)
    steps = merge_concurrent(
        halve_and_double(range(ranks), stripe, hypercube(ranks, hops[j:] + hops[:j]))
        for j, stripe in enumerate(split_chunks(range(chunks), dims))
    )
    return CollectiveSchedule(
        name="striped_halving_doubling", ranks=ranks, chunks=chunks, steps=steps
    )
