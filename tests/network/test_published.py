"""Published times are met by one model for all rows, and its lists are sums."""

import numpy as np
import pytest

from jaxdist.collectives.algorithms.replay import count_contributions
from jaxdist.core.errors import BadInput
from jaxdist.network.concurrent import schedule_messages, simulate_concurrent
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.published import (
    PUBLISHED_ENCODINGS,
    PUBLISHED_SCHEDULES,
    PUBLISHED_SPARSE_SCHEDULES,
)
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.sparse import SparseEncoding, simulate_sparse


@pytest.fixture(scope="module")
def network():
    made = {name: find_topology(name, 1, {}) for name in ("tsubame3", "abci")}
    return {
        name: NetworkModel(
            topology=each, overheads=protocol_overheads("smpi"), sharing="rtt"
        )
        for name, each in made.items()
    }


# ms, from the tables of github.com/TruongThaoNguyen/allreduce_simulate, 45057ad.
ROWS = [
    ("tsubame3", "lr", 32, 2**25, 11.5863),
    ("tsubame3", "binominal_lr", 32, 2**25, 12.4233),
    ("tsubame3", "lr_lr", 64, 2**25, 6.74008),
    ("tsubame3", "lr_rab", 256, 2**22, 0.926743),
    ("tsubame3", "lr_rdb", 256, 2**27, 74.1467),
    ("tsubame3", "smp_binominal", 256, 2**26, 74.1896),
    ("tsubame3", "rab", 32, 2**25, 6.93297),
    ("tsubame3", "rdb", 32, 2**25, 37.0643),
    ("abci", "dense_reduce_bcast", 32, 2**27, 364.155),
    ("abci", "dense_ring", 32, 2**27, 33.880),
    ("abci", "dense_ring_ring", 64, 2**27, 37.416),
]
SPARSE_ROWS = [
    ("sparse_big", 16, 1 / 128, 41.785),
    ("sparse_small", 16, 1 / 128, 9.959),
    ("sparse_ring", 32, 1 / 64, 25.404),
    ("sparse_ring_ring", 32, 1 / 64, 16.996),
]


@pytest.mark.parametrize(("platform", "name", "ranks", "size", "ms"), ROWS)
def test_dense_rows_are_met_to_two_per_cent(network, platform, name, ranks, size, ms):
    steps = PUBLISHED_SCHEDULES[name](ranks, 4)
    found = simulate_collective(steps, float(size), network[platform])
    assert 1e3 * found.seconds == pytest.approx(ms, rel=0.02)


@pytest.mark.parametrize(("name", "ranks", "density", "ms"), SPARSE_ROWS)
def test_sparse_rows_are_met_to_three_per_cent(network, name, ranks, density, ms):
    sums, copies = PUBLISHED_ENCODINGS[name]
    entries = SparseEncoding(
        density=density, reduce_encoding=sums, copy_encoding=copies
    )
    steps = PUBLISHED_SPARSE_SCHEDULES[name](ranks, 4)
    found = simulate_sparse(steps, 2.0**27, network["abci"], entries)
    assert 1e3 * found.seconds == pytest.approx(ms, rel=0.03)


def test_a_gather_by_doubling_has_a_power_of_two_of_ranks():
    with pytest.raises(BadInput, match="4 ranks, or sparse_big"):
        PUBLISHED_SPARSE_SCHEDULES["sparse_small"](6, 2)


def test_ranks_at_their_own_pace_meet_a_ring_over_leaves(network):
    """Step by step the hops over the root would hold up all others."""
    steps = PUBLISHED_SCHEDULES["lr"](64, 4)
    own = schedule_messages(steps, 2.0**25, np.arange(64))
    found = simulate_concurrent([own], network["tsubame3"], "ranks")
    assert 1e3 * found.seconds == pytest.approx(12.1047, rel=1e-3)


@pytest.mark.parametrize("name", [*PUBLISHED_SCHEDULES, *PUBLISHED_SPARSE_SCHEDULES])
@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_published_lists_are_sums(name, ranks):
    steps = {**PUBLISHED_SCHEDULES, **PUBLISHED_SPARSE_SCHEDULES}[name](ranks, 4)
    assert (count_contributions(steps) == 1).all()
