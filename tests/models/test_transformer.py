"""Transformers: published sizes, causality, and each part against its formula."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.layers import Linear
from jaxdist.layers.experts import EXPERT_WEIGHTS
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory, objective_for
from jaxdist.models.transformer import Gpt2, Llama, Mixtral
from jaxdist.models.transformer_blocks import Gelu, Rotary, SwiGlu
from jaxdist.train.objective import NextToken
from jaxdist.train.task import Task

NAMES = ("gpt2_small", "llama", "mixtral")


def rngs():
    return nnx.Rngs(jax.random.key(0, impl="rbg"))


def make(name, **settings):
    config = ModelConfig(name=name, size="tiny", **settings)
    # XLA's own generator compiles in a third of the time.
    model = nnx.jit(lambda: model_factory(config)(rngs=rngs()))()
    model.eval()
    return model


@nnx.jit
def call(layer, x):
    return layer(x)


def tokens(rows=2, length=16, seed=0):
    drawn = np.random.default_rng(seed).integers(0, 64, (rows, length))
    return jnp.asarray(drawn, jnp.int32)


def parameters(config):
    model = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize(
    ("kind", "name", "published"),
    [
        (Gpt2, "gpt2_small", 124_439_808),
        (Llama, "llama", 1_235_814_400),
        (Mixtral, "mixtral", 46_571_720_704),
    ],
)
def test_parameters_are_those_of_the_published_model(kind, name, published):
    assert parameters(ModelConfig(name=name)) == published
    assert f"{published:,}" in re.findall(r"[\d,]+\d", kind.__doc__)


def test_mixtral_8x7b_has_the_published_parameters_in_all_and_for_a_token():
    config = ModelConfig(name="mixtral", tied_head=False)
    model = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    leaves = nnx.to_flat_state(nnx.state(model, nnx.Param))
    sizes = {path: leaf.size for path, leaf in leaves}
    assert sum(sizes.values()) == 46_702_792_704  # 46.70 B
    experts = sum(n for path, n in sizes.items() if path[-1] in EXPERT_WEIGHTS)
    assert sum(sizes.values()) - experts * 6 // 8 == 12_879_925_248  # 12.9 B
    for count in ("46,702,792,704", "12,879,925,248"):
        assert count in Mixtral.__doc__


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"name": "mixtral", "experts": 1}, "cannot go through 2 of 1 experts"),
        ({"name": "mixtral", "chosen_experts": 5}, "cannot go through 5 of 4"),
        ({"name": "gpt2_small", "experts": 4}, "gpt2_small has no experts"),
        ({"name": "llama", "capacity_factor": 1.0}, "model.capacity_factor is for"),
        ({"name": "gpt2_small", "router_z_weight": 0.1}, "model.router_z_weight is"),
    ],
)
def test_experts_that_cannot_be_are_refused(settings, what):
    with pytest.raises(BadInput, match=what):
        make(**settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [("capacity_factor", 0), ("balance_weight", -1), ("router_z_weight", -0.5)],
)
def test_numbers_of_experts_out_of_range_are_refused(key, value):
    with pytest.raises(BadInput, match=f"model.{key} = {value}"):
        ModelConfig(name="mixtral", **{key: value})


@pytest.mark.parametrize("name", NAMES)
def test_tiny_has_each_kind_of_block_once(name):
    config = ModelConfig(name=name, size="tiny")
    model = nnx.eval_shape(lambda: model_factory(config)(rngs=rngs()))
    blocks = [block for block, _ in model.chain()]
    assert blocks == ["embed", "block0", "head"]
    weighted = [
        path
        for path, leaf in nnx.iter_graph(model)
        if isinstance(leaf, nnx.Param) and leaf.ndim == 2
    ]
    assert len(weighted) <= 8


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_is_the_model(name):
    model, x = make(name), tokens()

    @nnx.jit
    def both(model, x):
        y = x
        for _, block in model.chain():
            y = block(y)
        return model(x), y

    whole, chained = both(model, x)
    np.testing.assert_allclose(whole, chained, atol=1e-6)
    assert chained.shape == (2, 16, 64)


@pytest.mark.parametrize("name", NAMES)
def test_no_token_sees_a_later_one(name):
    model, x = make(name, depth=2), tokens()
    later = x.at[:, 9:].set((x[:, 9:] + 1) % 64)
    before, after = call(model, x), call(model, later)
    np.testing.assert_allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert np.abs(before[:, 9] - after[:, 9]).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_positions_matter(name):
    model, x = make(name), tokens()
    turned = call(model, x[:, jnp.array([1, 0, *range(2, 16)])])
    assert np.abs(call(model, x)[:, -1] - turned[:, -1]).max() > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_is_the_head(name):
    model = make(name)
    paths = nnx.to_flat_state(nnx.state(model, nnx.Param)).paths
    assert sum(p[-1] == "embedding" for p in paths) == (
        2 if name == "gpt2_small" else 1
    )
    model.embed.tokens.embedding[...] = jnp.zeros((64, 32))
    np.testing.assert_array_equal(call(model, tokens()), jnp.zeros((2, 16, 64)))


def test_rotary_angles_depend_on_the_distance_alone():
    rng = np.random.default_rng(1)
    query, key = rng.normal(size=(2, 8)).astype("f4")
    same = [jnp.broadcast_to(jnp.asarray(x), (1, 12, 1, 8)) for x in (query, key)]
    q, k = (np.asarray(Rotary(100.0)(x))[0, :, 0] for x in same)
    likeness = q @ k.T
    for distance in range(-5, 6):
        found = np.diagonal(likeness, distance)
        np.testing.assert_allclose(found, found[0], atol=1e-4)
    np.testing.assert_allclose(q[0], query)
    assert abs(likeness[0, 5] - likeness[0, 0]) > 1e-3


def test_grouped_queries_are_repeated_keys():
    grouped = make("llama")
    full = make("llama", heads=4, kv_heads=4)
    few, many = grouped.block0.attention, full.block0.attention
    for part in ("query", "out"):
        getattr(many, part).kernel[...] = getattr(few, part).kernel[...]
    for part in ("key", "value"):
        kernel = getattr(few, part).kernel[...].reshape(32, 2, 8)
        getattr(many, part).kernel[...] = kernel.repeat(2, axis=1).reshape(32, 32)
    x = jax.random.normal(jax.random.key(0), (2, 16, 32))
    np.testing.assert_allclose(call(few, x), call(many, x), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_float64_stays_float64_and_bfloat16_narrow(name):
    how = ModelConfig(name=name, size="tiny")
    narrow = nnx.eval_shape(
        lambda: model_factory(how)(dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    )
    assert nnx.eval_shape(lambda m, x: m(x), narrow, tokens()).dtype == jnp.bfloat16
    with jax.enable_x64(True):
        task = Task(model=model_factory(how), optimizer=None, param_dtype=jnp.float64)
        wide = nnx.eval_shape(lambda: task._build(nnx.Rngs(0)))
        assert nnx.eval_shape(lambda m, x: m(x), wide, tokens()).dtype == jnp.float64


@pytest.mark.parametrize(
    ("settings", "rule", "remedy"),
    [
        (
            dict(embed=33),
            "model.embed is a multiple of 2 x model.heads",
            "model.embed=32",
        ),
        (dict(embed=12, heads=4), "2 x model.heads", "model.embed=16"),
        (dict(heads=8, kv_heads=3), "model.heads is a multiple", "model.kv_heads=2"),
        (dict(heads=8, kv_heads=9), "model.heads is a multiple", "model.kv_heads=8"),
        (dict(heads=1, kv_heads=2), "model.heads is a multiple", "model.kv_heads=1"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(settings, rule, remedy):
    with pytest.raises(BadInput) as refused:
        make("llama", **settings)
    assert rule in str(refused.value)
    assert f"remedy   {remedy}" in str(refused.value)
    key, value = remedy.removeprefix("model.").split("=")
    again = ModelConfig(size="tiny", **{**settings, key: int(value)})
    assert getattr(Llama.sizes(again), key) == int(value)


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(BadInput, match=r"data\.context=16, or model\.context=17"):
        make("llama")(tokens(length=17))


def test_the_gradient_of_a_position_counts_all_samples():
    config = ModelConfig(name="gpt2_small", size="tiny")
    model = model_factory(config)(dtype=jnp.bfloat16, rngs=rngs())
    model.eval()
    (_, embed), *_ = model.chain()
    graph, state = nnx.split(embed)

    def total(state):
        return nnx.merge(graph, state)(tokens(rows=512)).astype("float32").sum()

    found = jax.jit(jax.grad(total))(state)["positions"]["embedding"][...]
    assert (found == 512).all()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_trained_on_the_next_token(name):
    assert objective_for(ModelConfig(name=name)) == NextToken()


@pytest.mark.parametrize(("kind", "wide"), [(Gelu, 1), (SwiGlu, 2)])
def test_products_and_their_inputs_are_all_that_an_mlp_keeps(kind, wide):
    sizes = Gpt2.TINY
    make = partial(Linear, use_bias=False, rngs=nnx.Rngs(0))
    graph, state = nnx.split(kind(sizes, make, make))
    x = jnp.ones((2, 16, sizes.embed))
    _, back = jax.vjp(lambda s, x: nnx.merge(graph, s)(x), state, x)
    kept = sum(a.nbytes for a in jax.tree.leaves(back))
    weights = sum(a.nbytes for a in jax.tree.leaves(state))
    # For each product its input and what it makes, and what the last one reads.
    inner = 2 * 16 * sizes.hidden * 4
    assert kept <= wide * (x.nbytes + inner) + inner + weights


@pytest.mark.parametrize("name", NAMES)
def test_documents_of_a_window_are_as_alone(name):
    model, drawn = make(name, depth=2), tokens(rows=1, length=12)
    segments = jnp.asarray([[0] * 5 + [5] * 4 + [9] * 3], jnp.int32)
    packed = nnx.jit(lambda model: model(drawn, segments))(model)
    for a, b in ((0, 5), (5, 9), (9, 12)):
        alone = call(model, drawn[:, a:b])
        np.testing.assert_allclose(packed[:, a:b], alone, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_of_one_document_reaches_another(name):
    """Exactly zero: from the loss of the second to what the others are made of."""
    model, segments = make(name, depth=2), jnp.asarray([[0, 0, 0, 3, 3, 3, 6, 6]])

    @jax.jit
    def slopes(x):
        def loss(x):
            for _, block in [*model.chain()][1:]:
                x = block((x, segments) if not isinstance(x, tuple) else x)
            return jax.nn.log_softmax(x)[:, 3:6, 0].sum()

        return jax.grad(loss)(x)

    x = np.random.default_rng(0).normal(size=(1, 8, 32)).astype(np.float32)
    found = np.abs(np.asarray(slopes(x))).max(-1)[0]
    assert (found > 0).tolist() == [False] * 3 + [True] * 3 + [False] * 2
