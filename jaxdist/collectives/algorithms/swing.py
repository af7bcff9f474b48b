"""Swing: halving-doubling whose partners lie on both sides, near on a ring.

In round k a rank with an even number meets the rank ρ_k further on, an odd one the
rank ρ_k back, modulo P, with

    ρ_k = 1 - 2 + 4 - ... = Σ_{i=0..k} (-2)^i = 1, -1, 3, -5, 11, ...

at about 2/3 of the distance of halving-doubling's partners. P = 2^m ranks, S bytes:

    2 m steps,  2 (P-1)/P S sent by every rank

Source: De Sensi, Bonato, Saam and Hoefler 2024, "Swing: short-cutting rings for higher
bandwidth allreduce", NSDI, arXiv:2401.09356: the form for one ring and one port. The
publication has forms for other even numbers of ranks and for tori, too.
"""

from jaxdist.collectives.algorithms.halving import Partners, halve_and_double
from jaxdist.collectives.algorithms.non_power_of_two import log2_ranks
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule


def swing(ranks: int) -> CollectiveSchedule:
    """Return Swing over all ranks in their order on a ring.

    Args:
        ranks: a power of two.

    Raises:
        BadInput: another number.

    >>> [t.target for t in swing(8).steps[1].transfers]
    [7, 2, 1, 4, 3, 6, 5, 0]
    """
    rounds = log2_ranks("swing", ranks)
    steps = halve_and_double(range(ranks), range(ranks), _partners(ranks, rounds))
    return CollectiveSchedule(name="swing", ranks=ranks, chunks=ranks, steps=steps)


def _partners(ranks: int, rounds: int) -> Partners:
    return [
        [(rank + (-hop if rank % 2 else hop)) % ranks for rank in range(ranks)]
        for hop in (sum((-2) ** i for i in range(k + 1)) for k in range(rounds))
    ]
