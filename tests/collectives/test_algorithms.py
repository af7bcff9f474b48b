"""Every step list is a sum over all ranks, in the steps and bytes of its publication."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from jaxdist.collectives.algorithms.bucket import bucket_2d
from jaxdist.collectives.algorithms.double_tree import double_binary_tree
from jaxdist.collectives.algorithms.non_power_of_two import floor_power_of_two
from jaxdist.collectives.algorithms.parameter_server import parameter_server
from jaxdist.collectives.algorithms.rank_grid import near_square_divisor
from jaxdist.collectives.algorithms.registry import SCHEDULES, make_schedule
from jaxdist.collectives.algorithms.replay import count_contributions, simulate_schedule
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    Transfer,
)
from jaxdist.collectives.algorithms.two_level import two_level_halving, two_level_ring
from jaxdist.collectives.schedule_traffic import (
    busiest_rank_bytes,
    chunk_size,
    elements_per_rank,
)
from jaxdist.core.errors import BadInput

POWERS_ONLY = {"swing", "striped_halving_doubling"}
CASES = [
    (name, ranks)
    for name in SCHEDULES
    for ranks in range(1, 17)
    if name not in POWERS_ONLY or ranks == floor_power_of_two(ranks)
]


def is_sum(steps):
    return bool((count_contributions(steps) == 1).all())


def is_folded(ranks):
    return ranks != floor_power_of_two(ranks)


def bits(ranks):
    return floor_power_of_two(ranks).bit_length() - 1


def even(ranks):
    """2 (P-1)/P."""
    return Fraction(2 * (ranks - 1), ranks)


def two_level_bytes(ranks):
    host = near_square_divisor(ranks)
    hosts = ranks // host
    return even(host) + (even(floor_power_of_two(hosts)) + is_folded(hosts)) / Fraction(
        host
    )


# What the busiest rank sends, in arrays, by the formulas of the publications.
ARRAYS = {
    "ring": even,
    "recursive_doubling": lambda p: bits(p) + is_folded(p),
    "halving_doubling": lambda p: even(floor_power_of_two(p)) + is_folded(p),
    "halving_doubling_far": lambda p: even(floor_power_of_two(p)) + is_folded(p),
    "swing": even,
    "striped_halving_doubling": even,
    "two_level_ring": even,
    "two_level_halving": two_level_bytes,
    "bucket_2d": even,
    "parameter_server": lambda p: max(p - 1, 0),
    "sharded_parameter_server": even,
}


def around(ranks):
    """a + b - 2 of a table of a rows and b columns."""
    return near_square_divisor(ranks) + ranks // near_square_divisor(ranks) - 2


STEPS = {
    "ring": lambda p: 2 * (p - 1),
    "recursive_doubling": lambda p: bits(p) + 2 * is_folded(p),
    "halving_doubling": lambda p: 2 * bits(p) + 2 * is_folded(p),
    "halving_doubling_far": lambda p: 2 * bits(p) + 2 * is_folded(p),
    "swing": lambda p: 2 * bits(p),
    "striped_halving_doubling": lambda p: 2 * bits(p),
    "two_level_ring": lambda p: 2 * around(p),
    "bucket_2d": lambda p: 2 * around(p),
    "parameter_server": lambda p: 2 * (p > 1),
    "sharded_parameter_server": lambda p: 2 * (p > 1),
}


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_every_rank_ends_with_the_array_of_every_rank_once(name, ranks):
    assert is_sum(make_schedule(name, ranks))


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_replicas_end_with_the_same_bits(name, ranks):
    steps = make_schedule(name, ranks)
    rng = np.random.default_rng(ranks)
    start = rng.normal(size=(ranks, steps.chunks, 3)).astype(np.float32)
    end = simulate_schedule(steps, start)
    assert (end == end[0]).all()
    np.testing.assert_allclose(end[0], start.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "ranks"), CASES)
def test_the_busiest_rank_sends_what_the_formula_says(name, ranks):
    steps = make_schedule(name, ranks)
    size = 6 * steps.chunks
    if name == "double_binary_tree":
        # The publication bounds the busiest; the sum over ranks is exact.
        assert sum(elements_per_rank(steps, size)) == 2 * (ranks - 1) * size
        assert busiest_rank_bytes(steps, size, 4) <= 2 * 4 * size
    else:
        assert busiest_rank_bytes(steps, size, 4) == ARRAYS[name](ranks) * 4 * size


@pytest.mark.parametrize(("name", "ranks"), [c for c in CASES if c[0] in STEPS])
def test_the_steps_are_as_many_as_the_formula_says(name, ranks):
    assert len(make_schedule(name, ranks).steps) == STEPS[name](ranks)


@pytest.mark.parametrize("ranks", range(2, 17))
def test_a_tree_is_as_deep_as_a_logarithm_and_works_in_one_half_only(ranks):
    depth = math.ceil(math.log2(ranks))
    for pieces in (1, 2, 7):
        assert len(double_binary_tree(ranks, pieces).steps) <= pieces - 1 + 2 * depth
    adders = [
        {t.target for s in double_binary_tree(ranks, 1).steps for t in s.transfers
         if t.adds and t.start == half}
        for half in (0, 1)
    ]  # fmt: skip
    assert len(adders[0] & adders[1]) <= ranks % 2 + 2 * (ranks == 2)


@pytest.mark.parametrize(
    "steps",
    [
        two_level_ring(12, per_host=4),
        two_level_halving(12, per_host=2),
        two_level_halving(16, per_host=4),
        bucket_2d(12, per_row=6),
        bucket_2d(16, per_row=2),
        parameter_server(7, servers=3),
        double_binary_tree(11, pieces=9),
    ],
    ids=lambda steps: f"{steps.name}-{steps.ranks}",
)
def test_lists_with_other_settings_are_sums_too(steps):
    assert is_sum(steps)


def test_between_hosts_a_rank_sends_its_part_only():
    steps, host = two_level_ring(8, per_host=4), 4
    across = Counter()
    for transfer in (t for s in steps.steps for t in s.transfers):
        if transfer.source // host != transfer.target // host:
            across[transfer.source] += transfer.count
    # 2 (G-1)/G S/g of 8 chunks: two.
    assert across == dict.fromkeys(range(8), 2)


def test_swing_meets_nearer_ranks_than_halving_doubling_on_a_ring():
    def farthest(name):
        steps = make_schedule(name, 16).steps
        apart = [(t.source - t.target) % 16 for s in steps for t in s.transfers]
        return max(min(hops, 16 - hops) for hops in apart)

    assert (farthest("swing"), farthest("halving_doubling")) == (5, 8)


def test_every_dim_is_busy_in_each_step_of_the_striped_form():
    for step in make_schedule("striped_halving_doubling", 16).steps:
        partners = {t.source ^ t.target for t in step.transfers}
        assert partners == {1, 2, 4, 8}


def test_a_list_that_forgets_a_rank_is_not_a_sum():
    forgets = CollectiveSchedule(
        name="own",
        ranks=3,
        chunks=1,
        steps=(ScheduleStep((Transfer(0, 1, 0, 1, True),)),),
    )
    assert not is_sum(forgets)


def test_what_is_padded_is_sent():
    ring = make_schedule("ring", 4)
    assert chunk_size(ring, 5) == 2
    assert elements_per_rank(ring, 5) == (12,) * 4
    assert elements_per_rank(ring, 0) == (0,) * 4


def test_algorithms_cannot_be_replaced():
    with pytest.raises(TypeError):
        SCHEDULES["ring"] = None


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: make_schedule("rign", 4), "ring"),
        (lambda: make_schedule("ring", 0), "ranks=1"),
        (lambda: make_schedule("swing", 6), "swing(4)"),
        (lambda: make_schedule("striped_halving_doubling", 7), "(8)"),
        (lambda: two_level_ring(8, per_host=3), "2 ranks of a row"),
        (lambda: two_level_halving(8, per_host=0), "1 ranks of a row"),
        (lambda: bucket_2d(9, per_row=4), "3 ranks of a row"),
        (lambda: parameter_server(4, servers=5), "servers=4"),
        (lambda: parameter_server(4, servers=0), "servers=1"),
        (lambda: double_binary_tree(4, pieces=0), "pieces=4"),
    ],
)
def test_what_is_not_defined_is_refused_with_the_nearest_that_is(make, remedy):
    with pytest.raises(BadInput) as refused:
        make()
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(0, 0, 0, 1, True),
        Transfer(0, 2, 0, 1, True),
        Transfer(-1, 1, 0, 1, True),
        Transfer(0, 1, 1, 2, False),
        Transfer(0, 1, 0, 0, False),
    ],
)
def test_transfers_of_what_is_not_there_are_refused(transfer):
    with pytest.raises(BadInput, match="moves what is not there"):
        CollectiveSchedule(
            name="own", ranks=2, chunks=2, steps=(ScheduleStep((transfer,)),)
        )
