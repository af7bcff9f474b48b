"""Attention against its formula, in every precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.layers import causal_attention


def drawn(kv_heads=4, dtype="float64"):
    rng = np.random.default_rng(0)
    shapes = ((2, 5, 4, 6), (2, 5, kv_heads, 6), (2, 5, kv_heads, 6))
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def spelt_out(query, key, value):
    """Token by token and head by head."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    share = query.shape[2] // key.shape[2]
    out = np.zeros(query.shape)
    for b, t, h in np.ndindex(query.shape[:3]):
        scores = key[b, : t + 1, h // share] @ query[b, t, h] / np.sqrt(6)
        weights = np.exp(scores) / np.exp(scores).sum()
        out[b, t, h] = weights @ value[b, : t + 1, h // share]
    return out


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_it_is_the_formula_to_the_last_digits_of_float64(kv_heads):
    with jax.enable_x64(True):
        parts = drawn(kv_heads)
        found = np.asarray(jax.jit(causal_attention)(*parts))
    np.testing.assert_allclose(found, spelt_out(*parts), rtol=1e-13, atol=1e-14)


def test_it_is_jax_s_own_in_float32():
    parts = drawn(dtype="float32")
    want = jax.nn.dot_product_attention(*parts, is_causal=True)
    np.testing.assert_allclose(causal_attention(*parts), want, atol=1e-6)


def test_narrow_inputs_keep_their_dtype():
    parts = drawn(dtype="bfloat16")
    found = causal_attention(*parts)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, "f8"), spelt_out(*parts), atol=0.05)
