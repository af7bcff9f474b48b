"""FLOPs of single primitives: by hand, and against XLA's own count."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxdist.profile.flops import count_flops, program_flops, valid_taps
from jaxdist.profile.trace import trace_pruned


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def counted(function, *shapes):
    return program_flops(trace_pruned(function, *shapes))


def by_xla(function, *shapes):
    return jax.jit(function).lower(*shapes).cost_analysis().get("flops", 0)


def conv(x, k, **how):
    settings = {"window_strides": (1, 1), "padding": "SAME", **how}
    return lax.conv_general_dilated(
        x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings
    )


def gradients(x, k, **how):
    return jax.grad(lambda x, k: conv(x, k, **how).sum(), argnums=(0, 1))(x, k)


def test_a_ragged_product_counts_each_row_once():
    rows, matrices = f32(12, 5), f32(3, 5, 7)
    sizes = jax.ShapeDtypeStruct((3,), jnp.int32)

    def product(rows, matrices, sizes):
        return lax.ragged_dot(rows, matrices, sizes)

    def both(rows, matrices, sizes):
        return jax.grad(lambda *a: product(*a, sizes).sum(), argnums=(0, 1))(
            rows, matrices
        )

    once = 2 * 12 * 5 * 7
    assert counted(product, rows, matrices, sizes) == once
    # The product itself is not needed for the gradients of its sum.
    assert 2 * once <= counted(both, rows, matrices, sizes) <= 3 * once + 12 * 7


CONVS = {
    # 8 windows of 3 taps on 8 rows: 24 taps, two of them on padding.
    "same": ({}, (3, 3), 1, 2 * 5 * 7 * (24 - 2) ** 2),
    "valid": ({"padding": "VALID"}, (3, 3), 1, 2 * 5 * 7 * (6 * 3) ** 2),
    # Stride 2, SAME of 8 rows: one row of padding, after the last.
    "stride": ({"window_strides": (2, 2)}, (3, 3), 1, 2 * 5 * 7 * (12 - 1) ** 2),
    # Taps 0, 2, 4 with 2 rows of padding: the outer taps miss 2 windows each.
    "dilation": ({"rhs_dilation": (2, 2)}, (3, 3), 1, 2 * 5 * 7 * (24 - 4) ** 2),
    "pads": (
        {"padding": ((3, 0), (0, 3))},
        (3, 3),
        1,
        2 * 5 * 7 * (27 - 6) ** 2,
    ),
    "kernel wider than stride": (
        {"window_strides": (4, 4), "padding": "VALID"},
        (1, 1),
        1,
        2 * 5 * 7 * 2**2,
    ),
}


@pytest.mark.parametrize("case", CONVS)
def test_a_convolution_by_hand_and_by_xla(case):
    how, kernel, batch, expected = CONVS[case]
    shapes = f32(batch, 8, 8, 5), f32(*kernel, 5, 7)
    function = functools.partial(conv, **how)
    assert counted(function, *shapes) == expected == by_xla(function, *shapes)


def test_groups_see_their_own_channels_alone():
    function = functools.partial(conv, feature_group_count=3)
    shapes = f32(2, 8, 8, 6), f32(3, 3, 2, 9)
    expected = 2 * 2 * 22**2 * 2 * 9
    assert counted(function, *shapes) == expected == by_xla(function, *shapes)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"window_strides": (2, 3)},
        {"padding": "VALID"},
        {"rhs_dilation": (2, 1)},
        {"feature_group_count": 3},
        {"feature_group_count": 3, "window_strides": (2, 2)},
    ],
    ids=str,
)
def test_the_gradients_of_a_convolution_as_xla_counts_them(how):
    shapes = f32(2, 9, 8, 6), f32(3, 3, 6 // how.get("feature_group_count", 1), 9)
    function = functools.partial(gradients, **how)
    assert counted(function, *shapes) == by_xla(function, *shapes)


def test_each_gradient_costs_what_its_convolution_does():
    shapes = f32(1, 8, 8, 5), f32(3, 3, 5, 7)
    forward = counted(conv, *shapes)
    # The forward pass itself is not needed: two convolutions are left.
    eqns = trace_pruned(gradients, *shapes).eqns
    convs = [e for e in eqns if e.primitive.name == "conv_general_dilated"]
    assert [count_flops(e) for e in convs] == 2 * [forward]


def test_taps_between_dilated_rows_meet_nothing():
    # Rows 0, 2, 4 of a dilated input of 3; windows of 2 taps: one meets a row each.
    assert valid_taps(3, 2, 4, lhs_dilation=2) == 4


def test_a_dense_layer():
    assert counted(lambda x, w: x @ w, f32(4, 8), f32(8, 16)) == 2 * 4 * 8 * 16


def test_attention():
    def attend(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.einsum("bhqk,bkhd->bqhd", scores, v)

    shape = f32(2, 10, 3, 4)
    both = 2 * (2 * 2 * 3 * 10 * 10 * 4)
    assert counted(attend, shape, shape, shape) == both
    assert by_xla(attend, shape, shape, shape) == both


def test_a_scan_counts_every_trip():
    def run(x, w):
        return lax.scan(lambda c, _: (c @ w, None), x, None, length=5)[0]

    assert counted(run, f32(4, 8), f32(8, 8)) == 5 * 2 * 4 * 8 * 8


def test_scans_multiply():
    def inner(x):
        return lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0]

    def run(x):
        return lax.scan(lambda c, _: (inner(c), None), x, None, length=5)[0]

    assert counted(run, f32(7)) == 5 * 3 * 7


def test_a_while_loop_counts_once_and_a_conditional_its_longest_branch():
    def loop(x):
        return lax.while_loop(lambda c: c[0] > 0, lambda c: c - 1, x)

    def choose(x, i):
        branches = [lambda x: x, lambda x: x * x + x, lambda x: -x]
        return lax.switch(i, branches, x)

    index = jax.ShapeDtypeStruct((), jnp.int32)
    assert counted(loop, f32(7)) == 7 + 1
    assert counted(choose, f32(7), index) == 2 * 7 + 1  # and the index is clamped


def test_calls_are_looked_into():
    @jax.custom_vjp
    def twice(x):
        return x * 2

    twice.defvjp(lambda x: (twice(x), None), lambda _, g: (g * 2,))
    for function in (twice, jax.jit(twice), jax.checkpoint(twice), jax.nn.relu):
        assert counted(function, f32(7)) == 7


def test_recomputation_counts():
    def run(x):
        return jax.grad(lambda x: jax.checkpoint(lambda x: (x @ x) @ x)(x).sum())(x)

    # Again x @ x, then two gradients of two products, and two sums of gradients of x.
    expected = 5 * 2 * 4**3 + 2 * 4**2
    assert counted(run, f32(4, 4)) == expected == by_xla(run, f32(4, 4))


ELEMENTWISE = {
    "relu": (jax.nn.relu, 1),
    "sum of squares": (lambda x: x * x + x, 2),
    "power 5": (lambda x: lax.integer_pow(x, 5), 3),
    "power -2": (lambda x: lax.integer_pow(x, -2), 2),
    "exp is apart": (jnp.exp, 0),
    "a cast": (lambda x: x.astype(jnp.bfloat16), 1),
    "no cast": (lambda x: x.astype(jnp.float32), 0),
    "moving": (lambda x: lax.rev(x.T.reshape(-1), (0,)), 0),
    "logistic": (lax.logistic, 3),
    "gelu": (jax.nn.gelu, 8),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    function, each = ELEMENTWISE[name]
    shape = f32(10, 7)
    assert counted(function, shape) == each * 70 == by_xla(function, shape)


def pooled(x, kind=lax.max, start=-jnp.inf, padding="SAME"):
    return lax.reduce_window(x, start, kind, (1, 3, 3, 1), (1, 2, 2, 1), padding)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum((1, 2)),
        lambda x: x.max(),
        lambda x: x.mean((0, 1, 2)),
        pooled,
        lambda x: pooled(x, lax.add, 0.0, "VALID"),
        jax.grad(lambda x: pooled(x).sum()),
        lambda x: jnp.cumsum(x, 1),
        lambda x: jnp.argmax(x, -1),
        lambda x: jnp.sort(x, -1),
        lambda x: x.at[jnp.array([0, 1])].add(1.0),
        jax.nn.log_softmax,
    ],
)
def test_what_sums_moves_and_sorts_as_xla_counts_it(function):
    shape = f32(2, 8, 8, 5)
    assert counted(function, shape) == pytest.approx(by_xla(function, shape), rel=0.01)


def test_pooling_by_hand():
    # 4 x 4 windows of 9 rows each, 8 comparisons a window, of 2 x 5 images.
    assert counted(pooled, f32(2, 8, 8, 5)) == 2 * 5 * 16 * 8
