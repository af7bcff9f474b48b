"""Fill-in: entries of messages are those of sums of random supports."""

import numpy as np
import pytest

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.algorithms.replay import count_contributions
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    Transfer,
)
from jaxdist.core.errors import BadInput
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.sparse import SparseEncoding, simulate_sparse, sparse_step_messages
from jaxdist.network.topologies.registry import make_topology


def supports(algorithm, numbers, density, seed):
    """Replay a list on real supports; yield the entries of each message."""
    rng = np.random.default_rng(seed)
    shape = (algorithm.ranks, algorithm.chunks, numbers)
    held = rng.random(shape) < density
    for step in algorithm.steps:
        sent = [
            (t, held[t.source, t.start : t.start + t.count].copy())
            for t in step.transfers
        ]
        yield [chunk.sum() for _, chunk in sent]
        for t, chunk in sent:
            span = slice(t.start, t.start + t.count)
            own = held[t.target, span]
            held[t.target, span] = own | chunk if t.adds else chunk


@pytest.mark.parametrize(
    "name", ["ring", "halving_doubling", "two_level_ring", "swing"]
)
def test_entries_are_those_of_random_supports(name):
    steps, numbers, density = schedule_by_name(name, 8), 100_000, 0.03
    size = 4.0 * numbers * steps.chunks
    entries = SparseEncoding(
        density=density, reduce_encoding="entries", copy_encoding="entries"
    )
    expected = sparse_step_messages(steps, size, entries)
    for found, counted in zip(
        expected, supports(steps, numbers, density, 0), strict=True
    ):
        np.testing.assert_allclose((found.size - 4) / 8, counted, rtol=0.08)


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n != "parameter_server"])
def test_whole_arrays_are_sent_as_they_are(name):
    """At density 1 no message is shorter as entries, so time is that of the dense list."""
    steps = schedule_by_name(name, 16)
    network = NetworkModel(topology=make_topology("torus", 16, {}))
    dense = simulate_collective(steps, 2.0**20, network).seconds
    sparse = simulate_sparse(
        steps, 2.0**20, network, SparseEncoding(density=1.0)
    ).seconds
    assert sparse == pytest.approx(dense, rel=1e-12)


def test_a_message_is_written_in_the_shorter_way():
    steps = CollectiveSchedule(
        name="one",
        ranks=2,
        chunks=1,
        steps=(ScheduleStep((Transfer(0, 1, 0, 1, True),)),),
    )
    for density, size in ((0.25, 4 + 8 * 25), (0.49, 4 + 8 * 49), (0.51, 400)):
        (message,) = sparse_step_messages(steps, 400.0, SparseEncoding(density=density))
        assert message.size[0] == pytest.approx(size)


def test_what_is_merged_one_after_another_grows():
    """Three arrays at rank 0: results of 2 and of 3 ranks."""
    step = ScheduleStep((Transfer(1, 0, 0, 1, True), Transfer(2, 0, 0, 1, True)))
    steps = CollectiveSchedule(name="both", ranks=3, chunks=1, steps=(step,))
    (message,) = sparse_step_messages(steps, 4000.0, SparseEncoding(density=0.1))
    expected = [1000 * (1 - 0.9**2), 1000 * (1 - 0.9**3)]
    np.testing.assert_allclose(message.entries, expected)


def test_the_counts_of_ranks_are_those_of_the_replay():
    steps = schedule_by_name("two_level_halving", 16)
    last = list(
        sparse_step_messages(steps, 4.0 * 16 * 1000, SparseEncoding(density=1e-9))
    )[-1]
    assert (count_contributions(steps) == 1).all()
    np.testing.assert_allclose((last.size - 4) / 8, 16 * 1e-9 * 1000 * 4, rtol=1e-5)


def test_draws_are_about_the_mean():
    steps = schedule_by_name("ring", 8)
    mean = list(sparse_step_messages(steps, 2.0**25, SparseEncoding(density=0.01)))
    drawn = list(
        sparse_step_messages(steps, 2.0**25, SparseEncoding(density=0.01, seed=3))
    )
    same = list(
        sparse_step_messages(steps, 2.0**25, SparseEncoding(density=0.01, seed=3))
    )
    for one, other, again in zip(mean, drawn, same):
        assert (one.size != other.size).any()
        assert (other.size == again.size).all()
        np.testing.assert_allclose(one.size, other.size, rtol=0.05)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.01])
def test_densities_that_cannot_be_are_refused(density):
    with pytest.raises(BadInput, match="above 0 and at most 1"):
        SparseEncoding(density=density)
