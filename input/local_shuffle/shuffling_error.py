"""The shuffling error: how far the law of an order is from that of a random one.

It is the total variation distance between the law of the order that samples are read in
and the uniform law over all N! orders,

    eps = 1/2 sum over orders |P(order) - 1 / N!|.

With it S epochs of synchronous SGD on M workers with b samples a step each converge as
O(sqrt(1 / (S N)) + log N / N + N eps^2 / (b M)) (Meng et al. 2017, "Convergence
Analysis of Distributed Stochastic Gradient Descent with Shuffling", arXiv:1709.10432;
for partial shuffling Nguyen et al. 2022, "Why Globally Re-shuffle?", IPDPS).
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.shuffle import PartialShuffle

_MAX_STATES = 2_000
"""Assignments of samples to partitions that are gone through, exactly."""

Assignment = tuple[frozenset[int], ...]
"""The samples of each partition."""


def assignment_law(
    shuffle: PartialShuffle, epochs: int
) -> list[dict[Assignment, float]]:
    """Return the probability of each assignment of samples, epoch by epoch.

    Every order of reads in a partition is taken for as probable as any other, and so is
    every first rotation: what the hashes of a seed stand for.

    Args:
        shuffle: partitions of equal size; its seed does not matter.
        epochs: exchanges that are followed.

    Returns:
        One law for the start of each epoch, from the first, before any exchange.

    Raises:
        BadInput: partitions of unequal size, or more assignments than can be followed.
    """
    total, size = shuffle.samples, shuffle.slots
    # N! / (n!)^V assignments of samples to partitions.
    states = math.factorial(total) // math.factorial(size) ** shuffle.partitions
    if shuffle.remainder or states > _MAX_STATES:
        raise BadInput(
            "the law of these partitions cannot be followed exactly",
            rule=f"partitions of equal size, with {_MAX_STATES:,} assignments at most",
            values=f"{total} samples in {shuffle.partitions} partitions",
            remedy="9 samples in 3 partitions, or fewer",
        )
    first = tuple(
        frozenset(range(own * size, (own + 1) * size))
        for own in range(shuffle.partitions)
    )
    laws, successors = [{first: 1.0}], dict[Assignment, tuple[Assignment, ...]]()
    for _ in range(epochs):
        after: dict[Assignment, float] = defaultdict(float)
        for state, share in laws[-1].items():
            if state not in successors:
                successors[state] = tuple(_exchanges(shuffle, state))
            # All choices are equally probable, so what several of them lead to adds up.
            for other in successors[state]:
                after[other] += share / len(successors[state])
        laws.append(dict(after))
    return laws


def _exchanges(shuffle: PartialShuffle, state: Assignment) -> Iterator[Assignment]:
    """Yield what an exchange may make of an assignment, all of one probability."""
    count, sent = shuffle.partitions, shuffle.exchange_count
    others = max(count - 1, 1)
    # The first rotation is a hash of the epoch; the others follow from it.
    turns = shuffle.rotation(0, np.arange(sent, dtype=np.int64))
    steps = (turns - turns[:1]).tolist()
    # In order: the j-th outgoing read goes r_j partitions further.
    choices = [itertools.permutations(sorted(own), sent) for own in state]
    for outgoing in itertools.product(*choices):
        for begin in range(others):
            after = [set(own) for own in state]
            for own, samples in enumerate(outgoing):
                for sample, step in zip(samples, steps, strict=True):
                    turn = 1 + (begin + step) % others
                    after[own].discard(sample)
                    after[(own + turn) % count].add(sample)
            yield tuple(map(frozenset, after))


def shuffling_errors(shuffle: PartialShuffle, epochs: int) -> list[float]:
    """Return eps at the start of each epoch, from the first: exact, for few samples.

    Orders within a partition are uniform, so the distance between laws of orders is
    that between laws of assignments.

    Args:
        shuffle: as `assignment_law`.
        epochs: exchanges that are followed.

    >>> shuffle = PartialShuffle(samples=4, partitions=2, exchange_count=1)
    >>> [round(eps, 4) for eps in shuffling_errors(shuffle, 2)]
    [0.8333, 0.3333, 0.1667]
    """
    states = math.factorial(shuffle.samples) // (
        math.factorial(shuffle.slots) ** shuffle.partitions
    )
    return [
        (
            sum(abs(share - 1 / states) for share in law.values())
            # Assignments that are never reached: each is off by its whole share.
            + (states - len(law)) / states
        )
        / 2
        for law in assignment_law(shuffle, epochs)
    ]


def largest_harmless_error(
    samples: int, workers: int, batch: int, epochs: int
) -> float:
    """Return the eps up to which the third term of the bound is not above the first.

    eps^2 = (b M / N) / sqrt(S N).

    Args:
        samples: N.
        workers: M.
        batch: b, samples of a worker's step.
        epochs: S.

    >>> f"{largest_harmless_error(1_281_167, 512, 32, 90):.1e}"
    '1.1e-03'
    """
    return math.sqrt(batch * workers / samples / math.sqrt(epochs * samples))


def log10_order_share(samples: int, workers: int, exchange_count: int) -> float:
    """Return log10 of an upper bound of the share of orders that an epoch can have.

    C(n, k)^M (M k)! / (k!)^M (n!)^M / N!, n = N / M: which samples leave, where to,
    and the orders in the partitions. eps is at least 1 less this share.

    Args:
        samples: N.
        workers: M, a partition each.
        exchange_count: k, samples that leave a partition.

    >>> round(log10_order_share(1_281_167, 512, 0) / 1e6, 1)
    -3.5
    """
    own = samples // workers

    full, part, left, moved, every = (
        # Logarithms: the factorials themselves are beyond any float.
        math.lgamma(number + 1)
        for number in (
            *(own, exchange_count, own - exchange_count),
            *(workers * exchange_count, samples),
        )
    )
    chosen = workers * (full - part - left)
    share = chosen + moved - workers * part + workers * full - every
    # The bound may be above 1, and a share is not.
    return min(share, 0.0) / math.log(10)
