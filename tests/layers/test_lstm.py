"""LSTM: flax's own cell, step after step, in every precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers import LSTM

SAMPLES, STEPS, FEATURES, UNITS = 3, 7, 5, 6


def make(dtype=jnp.float32):
    """A layer with random numbers throughout, and an input."""
    rng = np.random.default_rng(0)
    layer = nnx.eval_shape(lambda: LSTM(FEATURES, UNITS, rngs=nnx.Rngs(0)))
    drawn = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.5, dtype), nnx.state(layer)
    )
    nnx.update(layer, drawn)
    return layer, jnp.asarray(rng.normal(size=(SAMPLES, STEPS, FEATURES)), dtype)


def flax_cell(layer):
    """Flax's cell with the layer's numbers: gates side by side, in its order."""
    cell = nnx.OptimizedLSTMCell(
        FEATURES, UNITS, param_dtype=layer.kernel.dtype, rngs=nnx.Rngs(0)
    )
    cell.dense_i.kernel[...] = layer.kernel[...].reshape(FEATURES, -1)
    cell.dense_h.kernel[...] = layer.recurrent[...].reshape(UNITS, -1)
    cell.dense_h.bias[...] = layer.bias[...].reshape(-1)
    return cell


def by_flax(layer, x):
    cell, carry, outputs = flax_cell(layer), (), []
    zeros = jnp.zeros((SAMPLES, UNITS), x.dtype)
    carry = zeros, zeros  # its own carry begins with the cell
    for t in range(STEPS):
        carry, y = cell(carry, x[:, t])
        outputs.append(y)
    return jnp.stack(outputs, 1)


def total(f):
    return lambda layer, x: (f(layer, x) ** 2).sum()


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-6), ("float64", 1e-14)])
def test_it_is_flaxs_cell_step_after_step(dtype, atol):
    with jax.enable_x64(dtype == "float64"):
        layer, x = make(jnp.dtype(dtype))
        y = layer(x)
        assert (y.dtype, y.shape) == (jnp.dtype(dtype), (SAMPLES, STEPS, UNITS))
        np.testing.assert_allclose(y, by_flax(layer, x), atol=atol)


def test_its_gradients_are_those_of_the_steps_unrolled():
    with jax.enable_x64(True):
        layer, x = make(jnp.float64)
        ours = nnx.grad(total(lambda layer, x: layer(x)), argnums=(0, 1))(layer, x)
        theirs = nnx.grad(total(by_flax), argnums=(0, 1))(layer, x)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_carry_goes_on_where_it_ended():
    layer, x = make()
    first, carry = layer.run(x[:, :4])
    second, _ = layer.run(x[:, 4:], carry)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), layer(x), atol=1e-6)


def test_no_step_sees_a_later_one():
    layer, x = make()
    before, after = layer(x), layer(x.at[:, 4:].add(1))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).all()


def test_half_of_the_last_dims_is_half_of_every_gate():
    """What a split over units needs: its own half, given all outputs before."""
    layer, x = make()
    y, (_, cell) = layer.run(x)
    half = slice(UNITS // 2, None)
    gates = jnp.einsum("btc,cgh->btgh", x, layer.kernel[..., half]) + jnp.einsum(
        "btk,kgh->btgh",
        jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1],
        layer.recurrent[..., half],
    )
    gates += layer.bias[:, half]
    state = jnp.zeros((SAMPLES, UNITS // 2), x.dtype)
    for t in range(STEPS):
        i, f, g, _ = gates[:, t].swapaxes(0, 1)
        state = jax.nn.sigmoid(f) * state + jax.nn.sigmoid(i) * jnp.tanh(g)
    np.testing.assert_allclose(state, cell[:, half], atol=1e-6)


def test_bfloat16_keeps_a_wide_cell():
    layer, x = make()
    layer.dtype = jnp.bfloat16
    y, (last, cell) = layer.run(x)
    assert [a.dtype for a in (y, last, cell)] == [jnp.bfloat16, jnp.bfloat16, "float32"]
    layer.dtype = None
    np.testing.assert_allclose(y.astype("float32"), layer(x), atol=0.05)


def test_first_weights_leave_the_length_of_outputs_and_remember():
    layer = LSTM(FEATURES, UNITS, rngs=nnx.Rngs(0))
    for gate in range(4):
        turn = layer.recurrent[:, gate]
        np.testing.assert_allclose(turn @ turn.T, np.eye(UNITS), atol=1e-5)
    np.testing.assert_array_equal(layer.bias[...].any(1), [False, True, False, False])
    assert (layer.bias[1] == 1).all()
