"""Maxima are those of `lax.reduce_window` in flax, with its gradients, dim by dim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers.pool import max_over_windows
from jaxdist.layers.window import Window

WINDOWS = {
    "2x2": (Window(12, 2, 2), Window(9, 2, 2)),
    "3x3, overlapping": (Window(12, 3, 2, pads=(1, 1)), Window(9, 3, 1, pads=(0, 2))),
    "rows of one": (Window(12, 1, 3), Window(9, 4, 4)),
}


def at_once(x, windows):
    """All dims in one operation, whose gradient is a scatter."""
    extents, strides, pads = zip(*((w.extent, w.stride, w.pads) for w in windows))
    return nnx.max_pool(x, extents, strides, pads)


def pulled_back(pooled, x):
    y, back = jax.vjp(pooled, x)
    weights = jnp.arange(1.0, y.size + 1, dtype=y.dtype).reshape(y.shape)
    return y, back(weights)[0]


def both(windows, x):
    dims_first = pulled_back(lambda x: max_over_windows(x, windows, -jnp.inf), x)
    return zip(dims_first, pulled_back(lambda x: at_once(x, windows), x), strict=True)


@pytest.mark.parametrize("case", WINDOWS)
def test_equal_to_all_dims_at_once(case):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, 9, 3)))
    for got, want in both(WINDOWS[case], x):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", WINDOWS)
def test_of_equal_numbers_the_first_in_the_order_of_rows_has_the_gradient(case):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, (2, 12, 9, 3)), jnp.float64)
    for got, want in both(WINDOWS[case], x):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_number_that_is_none_stays_one(place):
    x = jnp.zeros((1, 2, 2, 1)).at[0, *place, 0].set(jnp.nan)
    assert jnp.isnan(max_over_windows(x, (Window(2, 2), Window(2, 2)), -jnp.inf)).all()


def test_nothing_is_scattered():
    windows = WINDOWS["3x3, overlapping"]
    x = jnp.zeros((2, 12, 9, 3))
    pulled = jax.make_jaxpr(
        lambda x: pulled_back(lambda x: max_over_windows(x, windows, 0), x)
    )
    assert "scatter" not in str(pulled(x))
