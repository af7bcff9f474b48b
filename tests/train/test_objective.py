"""Objectives: losses are a sample's own, and answers are counted one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.train.objective import Classification, NextToken, cast

RNG = np.random.default_rng(0)


def surprise(logits, target):
    """Minus the logarithm of the target's softmax, spelt out."""
    logits = np.asarray(logits, np.float64)
    chosen = np.take_along_axis(logits, target[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


def test_a_label_a_sample():
    logits, label = RNG.normal(size=(6, 5)).astype("f4"), RNG.integers(0, 5, 6)
    batch = {"label": jnp.asarray(label, jnp.int32)}
    losses = Classification().losses(jnp.asarray(logits), batch)
    np.testing.assert_allclose(losses, surprise(logits, label), rtol=1e-5)
    right = Classification().right(jnp.asarray(logits), batch)
    np.testing.assert_array_equal(right, logits.argmax(-1) == label)


def test_a_label_a_token_is_a_mean_within_the_sample():
    logits, target = RNG.normal(size=(3, 7, 5)).astype("f4"), RNG.integers(0, 5, (3, 7))
    batch = {"target": jnp.asarray(target, jnp.int32)}
    losses = NextToken().losses(jnp.asarray(logits), batch)
    np.testing.assert_allclose(losses, surprise(logits, target).mean(1), rtol=1e-5)
    right = NextToken().right(jnp.asarray(logits), batch)
    np.testing.assert_array_equal(right, logits.argmax(-1) == target)


@pytest.mark.parametrize("objective", [Classification(), NextToken()])
def test_losses_of_narrow_logits_are_wide(objective):
    shape = (2, 3, 5) if isinstance(objective, NextToken) else (2, 5)
    batch = {key: jnp.zeros(shape[:-1], jnp.int32) for key, _ in objective.targets}
    losses = objective.losses(jnp.zeros(shape, jnp.bfloat16), batch)
    assert (losses.shape, losses.dtype) == ((2,), jnp.float32)
    np.testing.assert_allclose(losses, np.log(5), rtol=1e-6)


def test_only_floats_are_cast():
    shapes = (
        jax.ShapeDtypeStruct((2,), jnp.float32),
        jax.ShapeDtypeStruct((3,), jnp.int32),
    )
    assert [x.dtype.name for x in cast(shapes, jnp.bfloat16)] == ["bfloat16", "int32"]
    assert cast(shapes, None) == shapes
