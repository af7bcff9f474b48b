"""Gradients of a partial shuffle are those of a global one on average; orders differ."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.input.local_shuffle.shuffling_error import (
    assignment_law,
    largest_harmless_error,
    log10_order_share,
    shuffling_errors,
)

SEEDS = 1_000


def shuffle_of(samples, partitions, sent, seed=0):
    return PartialShuffle(
        samples=samples, partitions=partitions, exchange_count=sent, seed=seed
    )


def held(shuffle, epoch):
    """The samples of each partition at the start of an epoch."""
    return tuple(
        frozenset(shuffle.ids(epoch, own).tolist()) for own in range(shuffle.partitions)
    )


@pytest.mark.parametrize(("partitions", "sent"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("epoch", [1, 2])
def test_the_law_is_that_of_the_shuffle_over_its_seeds(partitions, sent, epoch):
    law = assignment_law(shuffle_of(6, partitions, sent), epoch)[epoch]
    seen = Counter(
        held(shuffle_of(6, partitions, sent, seed), epoch) for seed in range(SEEDS)
    )
    assert seen.keys() <= law.keys()
    off = sum(abs(seen[state] / SEEDS - share) for state, share in law.items()) / 2
    # What as many draws of the law itself are off by: sqrt(p / (2 pi n)), summed.
    noise = sum(math.sqrt(share / (2 * math.pi * SEEDS)) for share in law.values())
    assert off < 1.5 * noise


def test_the_error_is_that_of_whole_orders():
    # All orders of four samples in two partitions, one read and one exchange.
    law = Counter()
    for first, second in itertools.product(itertools.permutations(range(2)), repeat=2):
        own, other = [0, 1], [2, 3]
        own[first[0]], other[second[0]] = other[second[0]], own[first[0]]
        for orders in itertools.product(
            itertools.permutations(own), itertools.permutations(other)
        ):
            law[sum(orders, ())] += Fraction(1, 16)
    assert sum(law.values()) == 1
    uniform = Fraction(1, math.factorial(4))
    error = (
        sum(abs(law[order] - uniform) for order in itertools.permutations(range(4))) / 2
    )
    assert shuffling_errors(shuffle_of(4, 2, 1), 1)[1] == pytest.approx(float(error))


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_steps_expected_gradient_is_the_full_one_whatever_is_exchanged(sent):
    """Exactly, over all orders of reads, in every assignment that may come."""
    gradients = [Fraction(n * n - 7, 3) for n in range(6)]
    full = sum(gradients) / 6
    for state in assignment_law(shuffle_of(6, 2, sent), 2)[2]:
        orders = itertools.product(*(itertools.permutations(own) for own in state))
        steps = [
            [sum(gradients[order[step]] for order in each) / 2 for step in range(3)]
            for each in orders
        ]
        assert [sum(step) / len(steps) for step in zip(*steps, strict=True)] == [
            full
        ] * 3


def test_steps_of_a_run_have_the_full_gradient_on_average():
    gradients = np.random.default_rng(0).normal(size=12)
    steps = []
    for seed in range(SEEDS):
        order = PartialShuffleOrder(shuffle=shuffle_of(12, 3, 1, seed), batch=6)
        steps.append([gradients[order.ids(step)].mean() for step in range(2, 6)])
    error = np.mean(steps, 0) - gradients.mean()
    assert (abs(error) < 4 * np.std(steps, 0) / math.sqrt(SEEDS)).all()


def test_the_error_falls_with_epochs_and_stays_without_an_exchange():
    found = shuffling_errors(shuffle_of(6, 2, 1), 6)
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.9
    assert found[6] < 1e-3
    assert set(shuffling_errors(shuffle_of(6, 2, 0), 6)) == {found[0]}


def test_of_large_sets_an_epoch_has_next_to_none_of_all_orders():
    samples, workers = 1_281_167, 512
    shares = [
        log10_order_share(samples, workers, round(q * samples / workers))
        for q in (0, 0.1, 0.3)
    ]
    assert shares == sorted(shares)
    assert shares[-1] < -2e6
    # So eps is 1 there to any precision, far above what the bound calls harmless.
    assert largest_harmless_error(samples, workers, 32, 90) < 0.01


def test_sets_that_cannot_be_followed_are_refused():
    with pytest.raises(BadInput, match="cannot be followed exactly"):
        shuffling_errors(shuffle_of(100, 4, 2), 1)
    with pytest.raises(BadInput, match="equal size"):
        shuffling_errors(shuffle_of(7, 2, 1), 1)
