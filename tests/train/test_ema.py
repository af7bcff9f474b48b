"""The average of the weights: what it is, and that it is what is evaluated."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.train.state import TrainState, init_ema, named_leaves, update_ema


def walk(decay, weights):
    """Average a single weight over a run."""
    found = init_ema(decay, {"w": jnp.float32(weights[0])}, {})
    for step, weight in enumerate(weights[1:], start=1):
        new = {"w": jnp.float32(weight)}
        found = update_ema(found, decay, jnp.int32(step), new, {})
    return float(found["params"]["w"])


def test_the_first_steps_forget_the_start():
    """After nine equal weights the random first one counts 2/11 x ... x 10/19."""
    shares = [(1 + t) / (10 + t) for t in range(1, 10)]
    np.testing.assert_allclose(
        walk(0.9999, [0.0] + [1.0] * 9), 1 - np.prod(shares), rtol=1e-6
    )


def test_later_steps_have_the_asked_share():
    weights = np.random.default_rng(0).normal(size=40)
    want = weights[0]
    for step, weight in enumerate(weights[1:], start=1):
        share = min(0.5, (1 + step) / (10 + step))
        want = share * want + (1 - share) * weight
    assert walk(0.5, weights) == pytest.approx(want, abs=1e-6)


def test_without_a_share_nothing_is_kept():
    assert init_ema(0.0, {"w": jnp.ones(2)}, {}) is None
    assert update_ema(None, 0.0, jnp.int32(1), {"w": jnp.ones(2)}, {}) is None


def test_a_state_is_evaluated_on_its_average():
    own, mean = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    state = TrainState(step=jnp.int32(1), params=own, stats={}, opt=())
    assert state.evaluated == (own, {})
    kept = {"params": mean, "stats": {}}
    with_mean = TrainState(
        step=jnp.int32(1), params=own, stats={}, opt=(), average=kept
    )
    assert with_mean.evaluated == (mean, {})
    assert "average/params/w" in named_leaves(with_mean)
    assert not any("average" in name for name in named_leaves(state))
