"""The heap: temporary arrays of a program are those that XLA's CPU backend has."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jaxdist.layers.pool import max_over_windows
from jaxdist.layers.window import Window
from jaxdist.profile.xla_cpu.peak_memory import peak_temporary_bytes


def of_compiler(function, *inputs, donated=()):
    compiled = jax.jit(function, donate_argnums=donated).lower(*inputs).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def products(x, weights):
    for w in weights:
        x = jnp.maximum(x @ w, 0)
    return x.sum()


def normed(x, kernels):
    """Convolutions whose results lose their mean and are divided by their spread."""
    for kernel in kernels:
        dims = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
        away = x - x.mean((0, 1, 2))
        x = nnx.relu(away * lax.rsqrt((away**2).mean((0, 1, 2)) + 1e-5))
    return x.sum()


def pooled(x, kernels):
    dims = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernels[0], (1, 1), "SAME", dimension_numbers=dims)
    return (nnx.max_pool(x, (2, 2), (2, 2)) ** 2).sum()


def found_dim_by_dim(x, kernels):
    """Maxima over windows: of three rows that overlap, and then of two."""
    for kernel, extent in zip(kernels, (3, 2), strict=True):
        dims = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
        pads = (0, extent - 2)
        x = max_over_windows(
            nnx.relu(x), (Window(x.shape[1], extent, 2, pads=pads),) * 2, 0.0
        )
    return (x**2).sum()


def attended(x, weights):
    """Exponentials, each of which is read twice, and a product of them."""
    scores = nnx.softmax(jnp.einsum("bqc,bkc->bqk", x @ weights[0], x @ weights[1]))
    return (jnp.einsum("bqk,bkc->bqc", scores, x @ weights[2]) ** 2).sum()


def moved(loss):
    """A step that writes over its weights."""

    def step(weights, x):
        grads = jax.grad(loss, argnums=1)(x, weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    return step


@pytest.mark.parametrize(
    ("loss", "x", "weights"),
    [
        (products, (32, 128), [(128, 128)] * 4),
        (normed, (8, 16, 16, 16), [(3, 3, 16, 16)] * 3),
        (pooled, (8, 16, 16, 16), [(3, 3, 16, 16)]),
        (found_dim_by_dim, (8, 32, 32, 8), [(3, 3, 8, 8)] * 2),
        (attended, (4, 256, 32), [(32, 32)] * 3),
    ],
    ids=["products", "normed", "pooled", "dim by dim", "attended"],
)
def test_temporaries_are_those_of_the_compiler(loss, x, weights):
    """Within 10 %: gradients of what networks are made of, weights written over."""
    made = jax.tree.map(jnp.ones, weights, is_leaf=lambda s: isinstance(s, tuple))
    inputs = made, jnp.ones(x)
    jaxpr = jax.make_jaxpr(moved(loss))(*inputs).jaxpr
    many = len(jax.tree.leaves(made))
    found = peak_temporary_bytes(jaxpr, [(k, k) for k in range(many)])
    assert found == pytest.approx(of_compiler(moved(loss), *inputs, donated=0), rel=0.1)


def test_what_a_loop_carries_stays_where_it_is():
    def turns(x, weights):
        return lax.fori_loop(0, 4, lambda _, y: jnp.tanh(y @ weights) + y, x)

    inputs = jnp.ones((256, 256)), jnp.ones((256, 256))
    found = peak_temporary_bytes(jax.make_jaxpr(turns)(*inputs).jaxpr)
    assert found == pytest.approx(of_compiler(turns, *inputs), rel=0.06)


def test_sums_that_do_not_wait_for_each_other_are_one():
    """Nothing is copied that all devices' gradients are read before."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("data",), axis_types=auto)
    replicated, dealt = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")

    def own(weights, x):
        grads = jax.grad(products, argnums=1)(x, weights)
        summed = [lax.psum(g, "data") for g in grads]
        return [w - 0.1 * g for w, g in zip(weights, summed, strict=True)]

    step = jax.shard_map(
        own,
        mesh=mesh,
        in_specs=(replicated, dealt),
        out_specs=replicated,
        check_vma=False,
    )
    inputs = [jnp.ones((128, 128))] * 4, jnp.ones((32, 128))
    (whole,) = jax.make_jaxpr(step)(*inputs).jaxpr.eqns
    found = peak_temporary_bytes(whole.params["jaxpr"], [(k, k) for k in range(4)])
    assert found == pytest.approx(of_compiler(step, *inputs, donated=0), rel=0.06)


def test_what_is_read_after_it_may_be_written_over_is_copied():
    def step(weights, x):
        return weights + 1, jnp.tanh(x @ weights)

    inputs = jnp.ones((256, 256)), jnp.ones((8, 256))
    found = peak_temporary_bytes(jax.make_jaxpr(step)(*inputs).jaxpr, [(0, 0)])
    assert found == pytest.approx(of_compiler(step, *inputs, donated=0), rel=0.1)
