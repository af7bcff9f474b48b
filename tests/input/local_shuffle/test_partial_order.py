"""Steps take every sample once an epoch, near to their hosts, on any number of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder, order_from_config
from jaxdist.input.local_shuffle.shuffle import PartialShuffle, valid_host_counts
from jaxdist.input.order import GlobalShuffleOrder


@st.composite
def orders(draw):
    partitions = draw(st.integers(1, 8))
    slots = draw(st.integers(1, 30))
    samples = partitions * slots + draw(st.integers(0, partitions - 1))
    exchanged = draw(st.integers(0, slots)) if partitions > 1 else 0
    seed = draw(st.integers(0, 2**40))
    shuffle = PartialShuffle(
        samples=samples, partitions=partitions, exchange_count=exchanged, seed=seed
    )
    batch = partitions * draw(st.integers(1, 5))
    return PartialShuffleOrder(shuffle=shuffle, batch=batch)


def stream(order, steps):
    """Every (epoch, id) of the first steps."""
    ids = np.concatenate([order.ids(step) for step in range(steps)])
    epochs = np.concatenate([order.epochs(step) for step in range(steps)])
    return epochs, ids


@settings(max_examples=200, deadline=None)
@given(orders())
def test_every_sample_comes_once_an_epoch(order):
    epochs, ids = stream(order, order.steps(3))
    for epoch in range(3):
        assert np.array_equal(
            np.sort(ids[epochs == epoch]), np.arange(order.num_samples)
        )


@settings(max_examples=200, deadline=None)
@given(orders(), st.data())
def test_batches_are_the_same_on_any_hosts_and_through_any_resume(order, data):
    """Steps of several epochs, asked for in any order, by hosts and by one."""
    known = PartialShuffleOrder(shuffle=order.shuffle, batch=order.batch)
    for _ in range(4):
        step = data.draw(st.integers(0, 4 * order.steps(1)))
        hosts = data.draw(st.sampled_from(valid_host_counts(order.shuffle.partitions)))
        rows = np.split(np.arange(order.batch), hosts)
        fresh = PartialShuffleOrder(shuffle=order.shuffle, batch=order.batch)
        parts = [fresh.ids(step, own) for own in rows]
        assert np.array_equal(np.concatenate(parts), known.ids(step))
        epochs = [fresh.epochs(step, own) for own in rows]
        assert np.array_equal(np.concatenate(epochs), known.epochs(step))


@settings(max_examples=100, deadline=None)
@given(orders(), st.integers(0, 3))
def test_rows_of_a_host_are_of_its_partitions_but_at_the_end_of_an_epoch(order, epoch):
    shuffle, count = order.shuffle, order.shuffle.partitions
    first = -(-epoch * order.num_samples // order.batch)
    for step in range(first, first + 3):
        if len(set(order.epochs(step).tolist())) > 1:
            continue
        held = shuffle.locate(int(order.epochs(step)[0]), order.ids(step))
        own = np.repeat(np.arange(count), order.batch // count)
        tail = (order.epochs(step)[0] + 1) * order.num_samples - step * order.batch
        if tail >= order.batch + shuffle.remainder:
            assert np.array_equal(held.partition, own)


@settings(max_examples=25, deadline=None)
@given(orders(), st.data())
def test_what_leaves_was_there_and_what_comes_is_there_next(order, data):
    hosts = data.draw(st.sampled_from(valid_host_counts(order.shuffle.partitions)))
    own = range(order.shuffle.partitions // hosts)
    for step in range(order.steps(2)):
        gone, came, _ = order.step_exchange(step, own)
        held = order.partition_samples(step, own)
        assert np.isin(gone, held).all()
        after = np.union1d(np.setdiff1d(held, gone), came)
        assert np.array_equal(after, order.partition_samples(step + 1, own))


def test_without_an_exchange_partitions_keep_their_samples():
    order = order_from_config(
        ShuffleConfig(exchange_fraction=0, partitions=4),
        num_samples=40,
        batch=8,
        seed=3,
    )
    for step in range(20):
        assert np.array_equal(order.ids(step) // 10, np.repeat(range(4), 2))


def test_a_plan_without_a_part_draws_from_all_samples():
    order = order_from_config(ShuffleConfig(), num_samples=40, batch=8, seed=3)
    assert order == GlobalShuffleOrder(num_samples=40, batch=8, seed=3)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(BadInput, match="does not divide") as caught:
        order_from_config(
            ShuffleConfig(exchange_fraction=0.1, partitions=6),
            num_samples=600,
            batch=64,
            seed=0,
        )
    assert caught.value.remedy == ("data.batch=66", "plan.shuffle.partitions=2")


@pytest.mark.parametrize("q", [-0.1, 1.5])
def test_parts_outside_zero_to_one_are_refused(q):
    with pytest.raises(BadInput, match="no such part"):
        ShuffleConfig(exchange_fraction=q)
