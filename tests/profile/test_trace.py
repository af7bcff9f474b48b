"""Which arguments of a program its result has a gradient with."""

import jax
import jax.numpy as jnp
import pytest

from jaxdist.profile.trace import has_gradients


def _in_scan(x, y, z):
    def body(carry, row):
        return carry * x + row[0] * jax.lax.stop_gradient(y), row[0]

    return jax.lax.scan(body, x, (jnp.ones(3) * z, jnp.ones(3) * y))[0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y, z: x * jax.lax.stop_gradient(y) + jnp.floor(z), (1, 0, 0)),
        (lambda x, y, z: jnp.where(y > 0, x, 2 * x), (1, 0, 0)),
        (lambda x, y, z: x * z.astype(int).astype(float), (1, 0, 0)),
        (lambda x, y, z: jax.nn.relu(x) + jax.nn.softmax(y[None])[0], (1, 1, 0)),
        (jax.checkpoint(lambda x, y, z: x * jax.lax.stop_gradient(y)), (1, 0, 0)),
        (jax.jit(lambda x, y, z: (x + y, z)[0]), (1, 1, 0)),
        (_in_scan, (1, 0, 1)),
        (lambda x, y, z: jax.lax.cond(z > 0, jnp.sin, lambda _: y, x), (1, 1, 0)),
    ],
)
def test_arguments_with_a_gradient(function, expected):
    traced = jax.make_jaxpr(function)(*(jnp.asarray(v) for v in (1.0, 2.0, 3.0)))
    assert has_gradients(traced.jaxpr, [True]) == [bool(e) for e in expected]
    # What has none is zero where it is computed.
    computed = jax.grad(function, (0, 1, 2))(0.7, 0.3, 0.9)
    for known, gradient in zip(expected, computed, strict=True):
        assert known or gradient == 0
