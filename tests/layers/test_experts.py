"""Experts: what each token gets, what is dropped, and the losses of a router."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from jaxdist.layers import Experts, bind
from jaxdist.layers.experts import Routing, training_slots
from jaxdist.profile.flops import walk_jaxpr

FEATURES, HIDDEN, COUNT = 8, 16, 4


def make(chosen=2, dtype=None, **how):
    layer = Experts(
        FEATURES,
        HIDDEN,
        COUNT,
        Routing(chosen=chosen, **how),
        spreads=(0.5, 0.5),
        dtype=dtype,
        rngs=nnx.Rngs(0),
    )
    layer.train()
    return layer


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(1), (3, 6, FEATURES))


def by_hand(layer, x, chosen=2):
    """All experts of all tokens, and the weighted sum of the best of each."""
    router, gate, up, down = (
        np.asarray(w[...], np.float64)
        for w in (layer.router, layer.gate, layer.up, layer.down)
    )
    y, choices = np.zeros(x.shape), np.zeros((*x.shape[:2], chosen), int)
    for place in np.ndindex(x.shape[:2]):
        token = np.asarray(x[place], np.float64)
        scores = np.exp(token @ router)
        best = np.argsort(-scores, kind="stable")[:chosen]
        choices[place] = best
        for expert in best:
            inner = token @ gate[expert]
            inner = inner / (1 + np.exp(-inner)) * (token @ up[expert])
            share = scores[expert] / scores[best].sum()
            y[place] += share * (inner @ down[expert])
    return y, choices


@pytest.mark.parametrize(("chosen", "capacity"), [(1, None), (2, None), (2, 4.0)])
def test_a_token_gets_the_weighted_sum_of_its_experts(x, chosen, capacity):
    layer = make(chosen, capacity_factor=capacity)
    want, _ = by_hand(layer, x, chosen)
    np.testing.assert_allclose(layer(x), want, atol=1e-5)


def test_slots_are_given_to_first_choices_first_and_the_rest_is_dropped(x):
    layer = make(capacity_factor=0.67)  # 0.67 x 2 x 6 / 4, rounded up: 3 slots
    _, choices = by_hand(layer, x)
    want = np.zeros(x.shape)
    single = make(1)
    for weights in ("router", "gate", "up", "down"):
        setattr(single, weights, getattr(layer, weights))
    probabilities = np.asarray(jax.nn.softmax(x @ layer.router[...]))
    dropped = 0
    for sample in range(x.shape[0]):
        taken = np.zeros(COUNT, int)
        for number in range(2):
            for token in range(x.shape[1]):
                expert = choices[sample, token, number]
                taken[expert] += 1
                if taken[expert] > 3:
                    dropped += 1
                    continue
                own = x[sample, token]
                inner = jax.nn.silu(own @ layer.gate[...][expert])
                made = inner * (own @ layer.up[...][expert])
                p = probabilities[sample, token]
                share = p[expert] / p[choices[sample, token]].sum()
                want[sample, token] += share * np.asarray(
                    made @ layer.down[...][expert]
                )
    assert dropped
    np.testing.assert_allclose(layer(x), want, atol=1e-5)


@pytest.mark.parametrize(
    ("factor", "slots"), [(None, 0), (1.0, 10), (1.01, 11), (1.1, 11), (9.0, 20)]
)
def test_slots_are_rounded_up(factor, slots):
    assert training_slots(make(capacity_factor=factor), 20) == slots


def test_an_evaluation_drops_nothing(x):
    layer = make(capacity_factor=0.25)
    want, _ = by_hand(layer, x)
    assert np.abs(np.asarray(layer(x)) - want).max() > 0.1
    layer.eval()
    np.testing.assert_allclose(layer(x), want, atol=1e-5)


@pytest.mark.parametrize("capacity", [None, 0.5])
def test_gradients_have_the_losses_of_the_router(x, capacity):
    layer = make(balance_weight=0.5, z_weight=0.25, capacity_factor=capacity)
    plain = make(capacity_factor=capacity)
    graph, state, rest = nnx.split(layer, nnx.Param, ...)
    bare = nnx.split(plain, nnx.Param, ...)[0]

    def router_losses(router, x):
        scores = x @ router
        p = jax.nn.softmax(scores)
        _, chosen = jax.lax.top_k(p, 2)
        shares = jax.nn.one_hot(chosen, COUNT, dtype=p.dtype).mean((0, 1, 2))
        balance = COUNT * (jax.lax.stop_gradient(shares) * p.mean((0, 1))).sum()
        z = (jax.nn.logsumexp(scores, -1) ** 2).mean()
        return 0.5 * balance + 0.25 * z

    def inside(state, x):
        return (nnx.merge(graph, state, rest)(x) ** 2).sum()

    def outside(state, x):
        y = nnx.merge(bare, state, rest)(x)
        return (y**2).sum() + router_losses(state["router"][...], x)

    got, want = (jax.grad(f, argnums=(0, 1))(state, x) for f in (inside, outside))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())
    # The outputs are those of the network without them.
    np.testing.assert_array_equal(layer(x), plain(x))


@pytest.mark.parametrize("capacity", [None, 4.0])
def test_gradients_are_those_of_the_formula(x, capacity):
    layer = make(capacity_factor=capacity)
    graph, state = nnx.split(layer)

    def written(state, x):
        router, gate, up, down = (
            state[name][...] for name in ("router", "gate", "up", "down")
        )
        p = jax.nn.softmax(x @ router)
        share = jnp.where(p >= jnp.sort(p)[..., -2:-1], p, 0)
        inner = jax.nn.silu(jnp.einsum("btc,ecf->btef", x, gate))
        inner *= jnp.einsum("btc,ecf->btef", x, up)
        y = jnp.einsum("btef,efc,bte->btc", inner, down, share)
        return ((y / share.sum(-1, keepdims=True)) ** 2).sum()

    def own(state, x):
        return (nnx.merge(graph, state)(x) ** 2).sum()

    got, want = (jax.grad(f, argnums=(0, 1))(state, x) for f in (own, written))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())


def test_gradients_of_dropped_choices_are_slopes(x):
    layer = make(capacity_factor=0.67, dtype=jnp.float64)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        check_grads(layer, (np.asarray(x, np.float64),), order=1, modes=["rev"])


def test_a_router_is_float32_where_activations_are_not(x):
    layer = make(dtype=jnp.bfloat16)
    y = layer(x.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    traced = str(jax.make_jaxpr(layer)(x.astype(jnp.bfloat16)))
    assert f"f32[3,6,{COUNT}] = dot_general" in traced
    want, _ = by_hand(layer, x)
    assert np.abs(np.asarray(y, np.float64) - want).mean() < 0.1


@pytest.mark.parametrize(("capacity", "slots"), [(None, 12), (0.67, 3)])
def test_a_step_keeps_how_its_tokens_were_routed(x, capacity, slots):
    layer = make(capacity_factor=capacity)
    _, choices = by_hand(layer, x)
    counts = np.array([(choices == expert).sum((1, 2)) for expert in range(COUNT)])
    dropped = np.maximum(counts - slots, 0).sum()
    assert (dropped > 0) == (slots == 3)
    layer(x)
    assert not layer.choice_shares[...].any()
    bind(layer, jax.random.key(0), jnp.arange(len(x)))
    layer(x)
    want = np.append(counts.sum(1), dropped) / choices.size
    np.testing.assert_allclose(layer.choice_shares[...], want, rtol=1e-6)
    layer.eval()
    layer(x[:1])
    np.testing.assert_allclose(layer.choice_shares[...], want, rtol=1e-6)


@pytest.mark.parametrize(("capacity", "rows"), [(None, 2 * 6), (0.67, 3 * COUNT)])
def test_products_count_as_kept_for_the_backward_pass(x, capacity, rows):
    layer = make(capacity_factor=capacity)
    graph, state = nnx.split(layer)
    traced = jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, x)
    kept = sum(op.inner_bytes for op in walk_jaxpr(traced.jaxpr))
    # Rows are choices, or slots; of each what gate, up and down make, in float32.
    assert kept == 4 * len(x) * rows * (2 * HIDDEN + FEATURES)
