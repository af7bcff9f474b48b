"""The order law: every id once an epoch, from the step alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.order import GlobalShuffleOrder

orders = st.builds(
    GlobalShuffleOrder,
    num_samples=st.integers(1, 200),
    batch=st.integers(1, 70),
    seed=st.integers(0, 2**32),
)


def stream(order, epochs):
    """Every (epoch, id) of the first epochs, as the steps give them."""
    steps = range(order.steps(epochs))
    ids = np.concatenate([order.ids(step) for step in steps])
    return np.concatenate([order.epochs(step) for step in steps]), ids


@given(order=orders)
def test_every_id_once_an_epoch(order):
    epochs, ids = stream(order, 3)
    for epoch in range(3):
        assert sorted(ids[epochs == epoch].tolist()) == list(range(order.num_samples))


@given(order=orders)
def test_epochs_follow_each_other_without_a_gap(order):
    epochs, ids = stream(order, 3)
    assert ids.dtype == np.int32
    assert (
        epochs[: 3 * order.num_samples].tolist()
        == np.repeat([0, 1, 2], order.num_samples).tolist()
    )


@given(order=orders, epochs=st.integers(1, 5))
def test_steps_is_the_first_step_that_ends_the_epochs(order, epochs):
    steps = order.steps(epochs)
    assert steps * order.batch >= epochs * order.num_samples > (steps - 1) * order.batch


def test_batch_size_changes_the_cuts_and_not_the_stream():
    one, other = (
        GlobalShuffleOrder(num_samples=101, batch=8, seed=4),
        GlobalShuffleOrder(num_samples=101, batch=32, seed=4),
    )
    assert stream(one, 2)[1][:202].tolist() == stream(other, 2)[1][:202].tolist()


def test_no_epoch_of_a_seed_repeats_in_another_seed():
    drawn = [
        tuple(
            GlobalShuffleOrder(num_samples=50, batch=50, seed=seed).ids(epoch).tolist()
        )
        for seed in range(6)
        for epoch in range(6)
    ]
    assert len(set(drawn)) == 36


@pytest.mark.parametrize(("n", "batch"), [(0, 4), (2**31, 4), (4, 0)])
def test_impossible_sizes_are_refused(n, batch):
    with pytest.raises(BadInput, match="samples"):
        GlobalShuffleOrder(num_samples=n, batch=batch)
