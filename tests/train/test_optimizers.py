"""The learning rate: scaled with the batch, warmed up, then lowered."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.train.optimizers import OptimConfig, make_learning_rate, make_warmup


def rates(config, steps=1000, per_epoch=10.0, batch=256):
    with jax.numpy_dtype_promotion("standard"):
        return np.asarray(
            jax.jit(make_learning_rate(config, steps, per_epoch, batch))(
                np.arange(steps)
            )
        )


def test_the_rate_of_the_paper():
    """Goyal et al. 2017: 0.1 for 256, so 3.2 for 8,192, after five epochs from 0.1."""
    config = OptimConfig(
        lr=0.1, scaling="linear", warmup_epochs=5, milestones=(30, 60, 80)
    )
    found = rates(config, steps=900, batch=8192)
    # optax subtracts from the peak: what is left has the rounding of 3.2 in float32.
    np.testing.assert_allclose(found[:3], 0.1 + np.arange(3) * 3.1 / 50, atol=4e-7)
    for epoch, rate in ((5, 3.2), (30, 0.32), (60, 0.032), (80, 0.0032)):
        assert found[10 * epoch] == pytest.approx(rate, rel=1e-5)
        assert found[10 * epoch - 1] > found[10 * epoch] or epoch == 5
    assert found[-1] == pytest.approx(0.0032, rel=1e-5)


@given(st.integers(1, 16))
def test_scaling_is_by_256_samples(times):
    for scaling, grown in (("none", 1), ("linear", times), ("root", times**0.5)):
        config = OptimConfig(lr=0.3, scaling=scaling)
        assert make_warmup(config, 100, 10, 256 * times).peak_rate == pytest.approx(
            0.3 * grown
        )


def test_a_rate_that_does_not_grow_starts_from_zero():
    for config, batch in ((OptimConfig(), 4096), (OptimConfig(scaling="linear"), 64)):
        assert make_warmup(config, 100, 10, batch).initial_rate == 0
        assert rates(config, batch=batch)[0] == 0


def test_without_milestones_it_is_half_a_cosine():
    found = rates(OptimConfig(lr=2.0, warmup_epochs=10))
    np.testing.assert_allclose(found[100], 2.0, rtol=1e-6)
    np.testing.assert_allclose(found[550], 1.0, rtol=1e-6)
    assert 0 < found[-1] < 1e-4


def test_milestones_need_no_warm_up():
    found = rates(OptimConfig(lr=1.0, warmup_epochs=0, milestones=(50,)))
    np.testing.assert_allclose(found[[0, 499, 500, 999]], [1, 1, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize("epochs", [(30, 30), (60, 30), (2,)])
def test_milestones_come_one_after_the_other_and_after_the_warm_up(epochs):
    with pytest.raises(BadInput, match="out of order"):
        OptimConfig(warmup_epochs=5, milestones=epochs)
