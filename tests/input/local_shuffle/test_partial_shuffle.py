"""Partitions hold every sample once, exchange evenly, and need no message for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.keyed_permutation import permute
from jaxdist.input.local_shuffle.shuffle import (
    PartialShuffle,
    SampleLocations,
    default_partitions,
)


@st.composite
def shuffles(draw):
    # Every partition is traced back through every epoch: many of them take long.
    partitions = draw(st.integers(1, 12))
    slots = draw(st.integers(1, 30))
    samples = partitions * slots + draw(st.integers(0, partitions - 1))
    exchanged = draw(st.integers(0, slots)) if partitions > 1 else 0
    return PartialShuffle(
        samples=samples,
        partitions=partitions,
        exchange_count=exchanged,
        seed=draw(st.integers(0, 2**40)),
    )


@settings(max_examples=200, deadline=None)
@given(shuffles(), st.integers(0, 7))
def test_every_epoch_reads_every_sample_once(shuffle, epoch):
    read = [shuffle.read_order(epoch, w) for w in range(shuffle.partitions)]
    assert np.array_equal(np.sort(np.concatenate(read)), np.arange(shuffle.samples))
    held = [set(shuffle.ids(epoch, w).tolist()) for w in range(shuffle.partitions)]
    assert all(set(r.tolist()) == h for r, h in zip(read, held, strict=True))


@settings(max_examples=200, deadline=None)
@given(shuffles(), st.integers(0, 4))
def test_samples_move_as_an_explicit_exchange_moves_them(shuffle, epoch):
    """Tables of all partitions, swapped slot by slot, are the functions' values."""
    count = shuffle.partitions
    tables = [shuffle.ids(0, w) for w in range(count)]
    for passed in range(epoch):
        slot_at = [
            shuffle.apply_read_order(
                permute, passed, np.full(shuffle.size(w), w), np.arange(shuffle.size(w))
            )
            for w in range(count)
        ]
        after = [table.copy() for table in tables]
        for w in range(count):
            for j in range(shuffle.exchange_count):
                p = j * shuffle.slots // shuffle.exchange_count
                to = (w + int(shuffle.rotation(passed, np.asarray(j)))) % count
                after[to][slot_at[to][p]] = tables[w][slot_at[w][p]]
        tables = after
    for w in range(count):
        assert np.array_equal(tables[w], shuffle.ids(epoch, w))


@settings(max_examples=100, deadline=None)
@given(shuffles(), st.integers(0, 8))
def test_traffic_is_balanced_and_nothing_is_sent_to_oneself(shuffle, epoch):
    sent = np.arange(shuffle.exchange_count)
    if not sent.size:
        return
    turns = shuffle.rotation(epoch, sent)
    counts = np.bincount(turns, minlength=shuffle.partitions)
    assert counts[0] == 0
    assert np.ptp(counts[1:]) <= 1
    gone = [
        len(set(shuffle.ids(epoch, w)) - set(shuffle.ids(epoch + 1, w)))
        for w in range(shuffle.partitions)
    ]
    assert gone == [shuffle.exchange_count] * shuffle.partitions


@settings(max_examples=100, deadline=None)
@given(shuffles(), st.integers(0, 8))
def test_places_are_found_in_both_directions(shuffle, epoch):
    ids = np.arange(shuffle.samples)
    places = shuffle.locate(epoch, ids)
    first = shuffle.trace(places, epoch, 0)
    assert np.array_equal(shuffle.first_sample(first.partition) + first.slot, ids)
    back = shuffle.trace(shuffle.trace(places, epoch, epoch + 1), epoch + 1, epoch)
    assert all(np.array_equal(a, b) for a, b in zip(places, back, strict=True))


def test_few_reads_that_leave_reach_other_hosts_alike():
    """4 hosts of 8 partitions: 24 of 31 distances lead to another host."""
    shuffle = PartialShuffle(samples=2048, partitions=32, exchange_count=6)
    own = np.arange(32)[:, None]
    for epoch in range(40):
        to = (own + shuffle.rotation(epoch, np.arange(6))) % 32
        away = (to // 8 != own // 8).mean()
        assert away == pytest.approx(24 / 31, abs=0.12)


def test_reads_that_leave_are_spread_over_the_epoch():
    shuffle = PartialShuffle(samples=10_000, partitions=10, exchange_count=100)
    assert set(np.diff(shuffle.outgoing_positions(np.arange(100)))) == {10}


def test_samples_that_begin_in_one_slot_meet_as_often_as_others():
    """Slots are private: were they swapped like for like, such samples never met."""
    shuffle = PartialShuffle.from_fraction(samples=640, partitions=32, q=0.3)
    where = np.stack([shuffle.locate(e, range(640)).partition for e in range(30, 130)])
    same = (where[:, :, None] == where[:, None, :]).mean()
    assert same == pytest.approx(20 / 640, rel=0.02)
    alike = where.reshape(100, 32, 20)  # the last dim is the first slot
    met = [(alike[:, i] == alike[:, j]).mean() for i in range(32) for j in range(i)]
    assert np.mean(met) == pytest.approx(19 / 639, rel=0.1)


def test_the_numbers_never_change():
    # A change here changes the order of every run there is, and breaks its resume.
    shuffle = PartialShuffle(samples=23, partitions=4, exchange_count=2, seed=9)
    assert shuffle.read_order(0, 0).tolist() == [2, 4, 3, 1, 5, 0]
    assert shuffle.read_order(3, 1).tolist() == [0, 12, 21, 10, 5, 18]
    assert shuffle.read_order(50, 3).tolist() == [3, 13, 16, 9, 7]
    large = PartialShuffle.from_fraction(
        samples=1_281_167, partitions=512, q=0.1, seed=1
    )
    found = large.samples_at_positions(
        90, np.array([7, 7, 500]), np.array([0, 2501, 1000])
    )
    assert found.tolist() == [38632, 947927, 131139]


def test_one_partition_keeps_everything():
    shuffle = PartialShuffle.from_fraction(samples=5, partitions=1, q=0.5)
    assert shuffle.exchange_count == 0
    assert sorted(shuffle.read_order(4, 0).tolist()) == [0, 1, 2, 3, 4]


def test_an_exchange_of_less_than_a_sample_is_refused():
    with pytest.raises(BadInput, match="less than a sample") as caught:
        PartialShuffle.from_fraction(samples=40, partitions=4, q=0.01)
    assert caught.value.remedy[0] == "plan.shuffle.exchange_fraction=0.1"


def test_more_partitions_than_samples_are_refused():
    with pytest.raises(BadInput, match="more partitions than samples"):
        PartialShuffle.from_fraction(samples=3, partitions=4, q=0.1)


@pytest.mark.parametrize(
    ("batch", "samples", "q", "partitions"),
    [(64, 1437, 0.1, 64), (64, 100, 0.1, 16), (8192, 10**6, 0.1, 4096), (7, 7, 0, 7)],
)
def test_partitions_divide_the_batch_and_can_exchange(batch, samples, q, partitions):
    assert default_partitions(batch, samples, q) == partitions


def test_places_name_their_parts():
    assert SampleLocations(np.array([1]), np.array([2])).slot.tolist() == [2]
