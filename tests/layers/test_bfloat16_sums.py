"""Sums that layers take in bfloat16: 4,096 equal terms are 4,096, and not 256."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.layers import LSTM, AvgPool, Conv, ConvTranspose, Embed, Linear

NARROW = jnp.bfloat16


def gradients(layer, *inputs):
    """Gradients of the sum of a layer's outputs."""
    graph, state = nnx.split(layer)

    def total(state):
        return nnx.merge(graph, state)(*inputs).astype(jnp.float32).sum()

    return jax.jit(jax.grad(total))(state)


@pytest.mark.parametrize("kind", [Conv, ConvTranspose, Linear])
def test_the_gradient_of_a_bias_counts_all_positions(kind):
    size = () if kind is Linear else ((1, 1),)
    layer = kind(1, 2, *size, dtype=NARROW, rngs=nnx.Rngs(0))
    found = gradients(layer, jnp.ones((4, 32, 32, 1)))["bias"][...]
    assert found.tolist() == [4096.0] * 2


@pytest.mark.parametrize("dtype", [jnp.float32, NARROW])
def test_the_gradient_of_a_table_counts_all_tokens(dtype):
    table = Embed(2, 2, dtype=NARROW, param_dtype=dtype, rngs=nnx.Rngs(0))
    found = gradients(table, jnp.zeros((4, 1024), jnp.int32))["embedding"][...]
    assert found.dtype == dtype
    assert found.tolist() == [[4096.0] * 2, [0.0] * 2]


def test_the_mean_of_a_window_counts_all_rows():
    assert AvgPool(32)(jnp.ones((1, 32, 32, 1), NARROW)).item() == 1


def test_an_lstm_adds_its_gradients_up_over_all_steps():
    layer, x = LSTM(1, 2, dtype=NARROW, rngs=nnx.Rngs(0)), jnp.ones((1, 2048, 1))
    narrow = gradients(layer, x)
    layer.dtype = jnp.float32
    for name, want in gradients(layer, x).items():
        error = jnp.abs(narrow[name][...] - want[...]).max()
        assert error < 0.01 * jnp.abs(want[...]).max(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_programs_have_no_casts(dtype):
    """What bfloat16 needs costs other dtypes nothing."""
    rngs, how = nnx.Rngs(0), {"dtype": dtype, "param_dtype": dtype}
    image = jnp.ones((1, 4, 4, 1), dtype)
    for layer, given in (
        (Conv(1, 2, (1, 1), rngs=rngs, **how), image),
        (Embed(2, 2, rngs=rngs, **how), jnp.zeros((2, 3), jnp.int32)),
        (AvgPool(2), image),
    ):
        program = jax.make_jaxpr(layer)(given)
        assert "convert_element_type" not in str(program)
