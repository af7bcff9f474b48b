"""Norms of tokens against flax's own, and in every precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers import LayerNorm, RMSNorm

PAIRS = [(LayerNorm, nnx.LayerNorm), (RMSNorm, nnx.RMSNorm)]


def norm(kind, **how):
    """A norm whose scale and bias are nothing special."""
    layer = kind(8, epsilon=1e-5, rngs=nnx.Rngs(0), **how)
    numbers = jnp.arange(8, dtype=jnp.float32)
    nnx.update(layer, jax.tree.map(lambda x: x + numbers / 8, nnx.state(layer)))
    return layer


@pytest.mark.parametrize(("ours", "flax"), PAIRS)
def test_it_is_flax_s(ours, flax):
    x = jax.random.normal(jax.random.key(0), (2, 5, 8)) * 3 + 1
    with jax.numpy_dtype_promotion("standard"):  # flax's own does not run without
        want = norm(flax)(x)
    np.testing.assert_allclose(norm(ours)(x), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("ours", "_"), PAIRS)
def test_narrow_inputs_are_summed_wide(ours, _):
    x = jax.random.normal(jax.random.key(0), (4, 8)).astype(jnp.bfloat16) + 100
    y = norm(ours, dtype=jnp.bfloat16)(x)
    assert y.dtype == jnp.bfloat16
    want = norm(ours)(x.astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("ours", "_"), PAIRS)
def test_float64_keeps_its_digits(ours, _):
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)))
        y = np.asarray(ours(8, epsilon=0, rngs=nnx.Rngs(0))(x))
    assert y.dtype == np.float64
    np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-13)


@pytest.mark.parametrize(("ours", "_"), PAIRS)
def test_a_mask_is_refused(ours, _):
    with pytest.raises(TypeError, match="mask"):
        ours(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8)), mask=jnp.ones((2, 8), bool))


@pytest.mark.parametrize(("ours", "_"), PAIRS)
def test_its_input_and_scale_are_all_that_is_kept(ours, _):
    x = jax.random.normal(jax.random.key(0), (16, 8)).astype(jnp.bfloat16)
    graph, state = nnx.split(norm(ours, dtype=jnp.bfloat16))
    _, back = jax.vjp(lambda s, x: nnx.merge(graph, s)(x), state, x)
    kept = sum(a.nbytes for a in jax.tree.leaves(back))
    assert kept <= x.nbytes + sum(a.nbytes for a in jax.tree.leaves(state))
