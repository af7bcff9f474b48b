"""A backward pass in two parts: each equation once, and exactly the whole's results."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var, jaxpr_as_fun

from jaxdist.pipeline.backward_split import inline_calls, split_backward
from jaxdist.pipeline.stages import bind_vjp_residuals, vjp_residuals

MOVES = {"broadcast_in_dim", "convert_element_type", "iota", "reshape", "squeeze"}
MOVES |= {"copy", "expand_dims", "rev", "transpose"}


@jax.custom_vjp
def doubled_gradient(x):
    return jnp.sin(x)


doubled_gradient.defvjp(
    lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jax.jit(jnp.cos)(x),)
)


def norm(scale, x):
    return scale * (x - x.mean(-1, keepdims=True)) / (1 + x.var(-1, keepdims=True))


def layer(w, x):
    inner = jax.nn.gelu(norm(w["scale"], x) @ w["wide"] + w["bias"], approximate=False)
    return x + doubled_gradient(inner) @ w["back"]


def plain(w, x):
    for own in w:
        x = layer(own, x)
    return x


def recurrent(w, x):
    """One loop has the gradients of inputs and of weights."""

    def cell(state, row):
        state = jnp.tanh(row @ w[0]["square"] + state @ w[1]["square"])
        return state, state

    return jax.lax.scan(cell, jnp.zeros_like(x[0]), x)[1]


def looked_up(w, index):
    """A first stage: it has no float input."""
    return plain(w[1:], w[0]["wide"].T[index])


STAGES = {
    "plain": plain,
    "a call that is made twice": lambda w, x: jax.jit(plain)(w, jax.jit(plain)(w, x)),
    "rematerialized": jax.checkpoint(plain),
    "rematerialized in part": lambda w, x: plain(w[1:], jax.checkpoint(layer)(w[0], x)),
    "recurrent": recurrent,
    "looked up": looked_up,
}


@pytest.fixture(params=STAGES)
def stage(request):
    """Return a backward pass and its arguments."""
    run, draw = STAGES[request.param], np.random.default_rng(0)
    shapes = {"scale": (6,), "bias": (8,), "wide": (6, 8), "back": (8, 6)}
    shapes["square"] = (6, 6)
    # As those of a stage: a dict of leaves.
    weights = {
        (k, name): jnp.asarray(draw.normal(size=s))
        for k in range(3)
        for name, s in shapes.items()
    }

    def nested(w):
        return [{name: w[k, name] for name in shapes} for k in range(3)]

    if request.param == "looked up":
        index = jnp.asarray([[3, 0], [3, 7]])
        inputs = []
        out, back = jax.vjp(lambda w, _: run(nested(w), index), weights, inputs)
    else:
        inputs = [jnp.asarray(draw.normal(size=(4, 3, 6)))]
        out, back = jax.vjp(lambda w, x: run(nested(w), x[0]), weights, inputs)

    def backward(residuals, weights, inputs, cotangent):
        return bind_vjp_residuals(back, residuals, weights, inputs)(cotangent)

    cotangent = jnp.asarray(draw.normal(size=out.shape))
    return backward, (vjp_residuals(back), weights, inputs, cotangent)


def live(jaxpr):
    """Return the equations that the results need."""
    wanted, found = {v for v in jaxpr.outvars if isinstance(v, Var)}, []
    for eqn in reversed(jaxpr.eqns):
        if wanted.intersection(eqn.outvars):
            found.append(eqn)
            wanted.update(v for v in eqn.invars if isinstance(v, Var))
    return found[::-1]


def outputs(program):
    return [eqn.outvars[0] for eqn in program.jaxpr.eqns]


def test_the_parts_are_exactly_the_whole(stage):
    backward, args = stage
    split = split_backward(backward, *args)
    down, kept = split.input_gradients(*args)
    assert split.weight_residual_spec.shapes == tuple(x.shape for x in kept)
    got = split.weight_gradients(kept, *args), down
    want = backward(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    # One primitive after the other, so that nothing is rounded in another way; what is
    # called is compiled as a whole.
    whole = inline_calls(jax.make_jaxpr(backward)(*args))
    exact = jaxpr_as_fun(whole)(*jax.tree.leaves(args))
    for a, b, c in zip(*map(jax.tree.leaves, (got, exact, want)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)


def test_no_equation_is_in_both_parts_and_none_is_missing(stage):
    backward, args = stage
    split = split_backward(backward, *args)
    first, second = outputs(split.input_pass), outputs(split.weight_pass)
    makers = {eqn.outvars[0]: eqn for eqn in split.weight_pass.jaxpr.eqns}
    assert {makers[v].primitive.name for v in {*first} & {*second}} <= MOVES

    whole = inline_calls(jax.make_jaxpr(backward)(*args)).jaxpr
    assert not any(
        "jaxpr" in eqn.params for eqn in whole.eqns if "scan" not in str(eqn)
    )
    want = Counter(str(eqn.primitive) for eqn in live(whole))
    both = {v: eqn for v, eqn in makers.items() if v not in {*first}}
    both |= {eqn.outvars[0]: eqn for eqn in split.input_pass.jaxpr.eqns}
    assert Counter(str(eqn.primitive) for eqn in both.values()) == want


def products(program):
    return sum(eqn.primitive.name == "dot_general" for eqn in program.jaxpr.eqns)


@pytest.mark.parametrize("stage", ["plain", "rematerialized"], indirect=True)
def test_each_product_of_weights_has_its_gradient_in_the_second_part(stage):
    backward, args = stage
    split = split_backward(backward, *args)
    assert products(split.weight_pass) == 2 * 3
    # A checkpoint makes the products once more, but for the last.
    assert products(split.input_pass) >= 2 * 3


@pytest.mark.parametrize("stage", ["looked up"], indirect=True)
def test_the_first_stage_does_as_much_in_each_part_as_others(stage):
    """Two layers: the gradients of their inputs first, those of weights behind them."""
    backward, args = stage
    split = split_backward(backward, *args)
    assert products(split.input_pass) == products(split.weight_pass) == 2 * 2
    names = [eqn.primitive.name for eqn in split.weight_pass.jaxpr.eqns]
    assert names.count("scatter-add") == 1


@pytest.mark.parametrize("stage", ["plain"], indirect=True)
def test_what_is_kept_is_the_gradients_of_products_alone(stage):
    """Norms' scales have theirs at once; biases' are sums of what is kept anyway."""
    split = split_backward(stage[0], *stage[1])
    found = sorted(split.weight_residual_spec.shapes)
    assert found == sorted([*3 * [(6,)], *3 * [(4, 3, 8)], *2 * [(4, 3, 6)]])
