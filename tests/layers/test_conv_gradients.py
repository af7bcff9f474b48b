"""Gradients written as channels-last convolutions are those that JAX derives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from jax import lax

from jaxdist.layers import Conv
from jaxdist.layers.conv_gradients import channels_last
from jaxdist.layers.halo import halo_conv
from jaxdist.layers.window import Window
from jaxdist.profile.flops import program_flops, walk_jaxpr
from jaxdist.profile.xla_cpu.backward_reads import backward_reads

windows = st.builds(
    lambda rows, taps, stride, dilation, pads: Window(
        rows=rows,
        extent=(taps - 1) * dilation + 1,
        stride=stride,
        dilation=dilation,
        pads=pads,
    ),
    rows=st.integers(1, 13),
    taps=st.integers(1, 11),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pads=st.tuples(st.integers(-2, 12), st.integers(-2, 12)),
)


def theirs(x, kernel, over, groups):
    return lax.conv_general_dilated(
        x,
        kernel,
        [w.stride for w in over],
        [w.pads for w in over],
        rhs_dilation=[w.dilation for w in over],
        dimension_numbers=channels_last(x.ndim),
        feature_group_count=groups,
    )


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    over=st.lists(windows, min_size=1, max_size=3),
    samples=st.integers(1, 3),
    groups=st.integers(1, 3),
    features=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_value_and_gradients_equal_those_of_jax(over, samples, groups, features):
    assume(all(w.outputs > 0 and w.rows + sum(w.pads) > 0 for w in over))
    assume(np.prod([w.outputs * w.taps for w in over]) < 2e4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, *(w.rows for w in over), groups * features[0]))
    kernel = rng.normal(
        size=(*(w.taps for w in over), features[0], groups * features[1])
    )
    (want, back), (got, own) = (
        jax.vjp(lambda x, k, f=f: f(x, k, tuple(over), groups), x, kernel)
        for f in (theirs, halo_conv)
    )
    dy = jnp.asarray(rng.normal(size=want.shape))
    for a, b in zip((got, *own(dy)), (want, *back(dy)), strict=True):
        assert a.dtype == b.dtype == jnp.float64
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * (1 + np.abs(b).max()))


def case(groups=1):
    over = Window(9, 3, 2, 1, (1, 1)), Window(8, 5, 1, 1, (2, 2))
    x = jax.ShapeDtypeStruct((2, 9, 8, 4), jnp.float32)
    kernel = jax.ShapeDtypeStruct((3, 5, 4 // groups, 6), jnp.float32)
    return over, x, kernel


def score(convolution, over, groups):
    return lambda kernel, x: convolution(x, kernel, over, groups).sum()


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_have_the_flops_that_jax_would_do(groups):
    over, x, kernel = case(groups)
    ours, jaxs = (
        program_flops(
            jax.make_jaxpr(jax.grad(score(f, over, groups), (0, 1)))(kernel, x).jaxpr
        )
        for f in (halo_conv, theirs)
    )
    assert ours == jaxs > 0


@pytest.mark.parametrize("groups", [1, 2])
def test_every_convolution_lies_channels_last(groups):
    over, x, kernel = case(groups)
    grad = jax.make_jaxpr(jax.grad(score(halo_conv, over, groups), (0, 1)))(kernel, x)
    numbers = [
        tuple(use.eqn.params["dimension_numbers"])
        for use in walk_jaxpr(grad.jaxpr)
        if use.eqn.primitive.name == "conv_general_dilated"
    ]
    assert numbers == 3 * [((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))]


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_gradient_that_nobody_needs_is_not_computed(wanted):
    over, x, kernel = case()
    grad = jax.make_jaxpr(jax.grad(score(halo_conv, over, 1), wanted))(kernel, x)
    names = [use.eqn.primitive.name for use in walk_jaxpr(grad.jaxpr)]
    assert names.count("conv_general_dilated") == 2


def test_only_a_kernel_whose_input_has_a_gradient_is_read_again():
    how = dict(use_bias=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    layers = [Conv(4, 4, (3, 3), **how) for _ in range(2)]
    graph, state = nnx.split(nnx.Sequential(*layers))
    leaves, tree = jax.tree.flatten(state)

    def loss(leaves, x):
        return nnx.merge(graph, jax.tree.unflatten(tree, leaves))(x).sum()

    x = jnp.ones((1, 4, 4, 4))
    assert backward_reads(loss, leaves, x) == (False, True)


def test_a_stage_keeps_its_input_and_kernel_as_arguments_alone():
    over, x, kernel = case()
    kept = []

    def run(kernel, x):
        _, back = jax.vjp(score(halo_conv, over, 1), kernel, x)
        kept.extend(jax.tree.leaves(back.opaque_residuals))
        assert all(isinstance(given, jax.Array) for given in back.args_res)

    jax.eval_shape(run, kernel, x)
    assert kept == []


def test_recomputing_gives_the_same_gradients():
    over, x, kernel = case()
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=a.shape)) for a in (kernel, x)]
    plain = score(halo_conv, over, 1)
    again = jax.checkpoint(plain, policy=jax.checkpoint_policies.nothing_saveable)
    for a, b in zip(
        jax.grad(again, (0, 1))(*arrays),
        jax.grad(plain, (0, 1))(*arrays),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_an_output_that_nothing_depends_on_has_no_gradients():
    over, x, kernel = case()
    arrays = [jnp.ones(a.shape) for a in (kernel, x)]

    @jax.jit
    def both(kernel, x):
        return halo_conv(x, kernel, over, 1), kernel

    grad = jax.grad(lambda k, x: both(k, x)[1].sum(), (0, 1))(*arrays)
    assert (grad[0] == 1).all()
    assert not grad[1].any()
