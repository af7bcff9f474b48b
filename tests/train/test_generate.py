"""Generating: what follows depends on what the network is shown, and on nothing else."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.train.generate import Sampling, generate
from jaxdist.train.objective import PackedNextToken


class Counter(nnx.Module):
    """Says the last token plus one, and is equally sure of all others."""

    def __init__(self):
        self.scale = nnx.Param(jnp.float32(50))

    def __call__(self, tokens):
        return self.scale[...] * jax.nn.one_hot((tokens + 1) % 10, 10)


class Oldest(nnx.Module):
    """Repeats the first token of its window."""

    def __call__(self, tokens):
        first = jnp.broadcast_to(tokens[:, :1], tokens.shape)
        return 50 * jax.nn.one_hot(first, 10)


class Fair(nnx.Module):
    """Is twice as sure of each token as of the one before it."""

    def __call__(self, tokens):
        weights = jnp.log(2.0) * jnp.arange(4, dtype=jnp.float32)
        return jnp.broadcast_to(weights, (*tokens.shape, 4))


def taken(network, prompt, count, *, context_length, **how):
    found = generate(
        network, [prompt], context_length=context_length, sampling=Sampling(**how)
    )
    return [token for (token,) in islice(found, count)]


class PackedCounter(Counter):
    """Counts from where the document of a token begins."""

    objective = PackedNextToken()

    def __call__(self, tokens, segments):
        return super().__call__(tokens + segments)


@pytest.mark.parametrize("temperature", [0, 1])
def test_it_counts_on_past_the_window(temperature):
    found = taken(Counter(), [3], 12, context_length=4, temperature=temperature)
    assert found == [(4 + i) % 10 for i in range(12)]


def test_a_text_is_one_document_of_a_network_that_asks_for_segments():
    assert taken(PackedCounter(), [3], 3, context_length=4, temperature=0) == [4, 5, 6]


def test_the_window_holds_the_last_tokens():
    assert taken(Oldest(), [1, 2, 3, 4], 5, context_length=3, temperature=0) == [
        2,
        3,
        4,
        2,
        3,
    ]
    assert taken(Oldest(), [7], 3, context_length=3, temperature=0) == [7, 7, 7]


def test_draws_follow_the_network_and_the_seed():
    drawn = taken(Fair(), [0], 1500, context_length=2, seed=1)
    shares = np.bincount(drawn, minlength=4) / 1500
    # Four standard deviations of a share of one half are 0.052.
    np.testing.assert_allclose(shares, np.array([1, 2, 4, 8]) / 15, atol=0.052)
    assert drawn[:50] == taken(Fair(), [0], 50, context_length=2, seed=1)
    assert drawn[:50] != taken(Fair(), [0], 50, context_length=2, seed=2)


def test_a_low_temperature_is_surer():
    drawn = taken(Fair(), [0], 300, context_length=2, temperature=0.2)
    assert np.mean(np.array(drawn) == 3) > 0.9


@pytest.mark.parametrize(
    "how", [dict(temperature=-1.0), dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.1)]
)
def test_what_is_no_way_to_draw(how):
    with pytest.raises(ValueError, match=next(iter(how))):
        Sampling(**how)


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []]])
def test_nothing_to_go_on_from(prompts):
    with pytest.raises(ValueError, match="prompt"):
        generate(Counter(), prompts, context_length=4)


def test_few_likeliest_tokens_are_drawn():
    drawn = taken(Fair(), [0], 400, context_length=2, top_k=2)
    assert set(drawn) == {2, 3}
    # 8/15 is more than a half; 8/15 + 4/15 = 0.8.
    assert set(taken(Fair(), [0], 50, context_length=2, top_p=0.5)) == {3}
    assert set(taken(Fair(), [0], 400, context_length=2, top_p=0.79)) == {2, 3}
    assert set(taken(Fair(), [0], 400, context_length=2, top_p=0.81)) == {1, 2, 3}


class Uncached(nnx.Module):
    """A Transformer that keeps nothing."""

    def __init__(self, network):
        self.network = network

    def __call__(self, tokens):
        return self.network(tokens)


def transformer(name, dtype):
    config = ModelConfig(name=name, size="tiny", depth=2)

    @nnx.jit
    def make():
        rngs = nnx.Rngs(jax.random.key(0, impl="rbg"))
        return model_factory(config)(rngs=rngs, dtype=dtype)

    network = make()
    drawn = np.random.default_rng(0)
    state = jax.tree.map(
        lambda x: jnp.asarray(drawn.normal(size=x.shape) * 0.3, dtype),
        nnx.state(network),
    )
    nnx.update(network, state)
    network.eval()
    return network


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-9)])
@pytest.mark.parametrize("name", ["gpt2_small", "llama", "mixtral"])
def test_logits_with_a_cache_are_those_without(name, dtype, limit):
    """Prompts of two lengths at once, then a token at a time."""
    with jax.enable_x64(dtype == "float64"):
        network = transformer(name, dtype)
        tokens = np.random.default_rng(1).integers(0, 64, (2, 16)).astype(np.int32)
        want = np.asarray(nnx.jit(lambda n: n(jnp.asarray(tokens)))(network))
        step = nnx.jit(lambda n, t, p, cache: n.extend(t, p, cache, 16))
        # The second text is two shorter: its place 4 and 5 are padding at first.
        places = np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6))
        logits, cache = step(network, jnp.asarray(tokens[:, :6]), places, None)
        scale = np.abs(want).max()
        np.testing.assert_allclose(logits[0] / scale, want[0, :6] / scale, atol=limit)
        for count in range(10):
            at = np.array([[6 + count], [4 + count]], np.int32)
            new = np.take_along_axis(tokens, at, 1)
            logits, cache = step(network, jnp.asarray(new), jnp.asarray(at), cache)
            found = np.take_along_axis(want, at[..., None], 1)
            np.testing.assert_allclose(logits / scale, found / scale, atol=limit)


def test_texts_with_a_cache_are_those_without_also_past_the_window():
    network, prompts = transformer("llama", "float32"), [[1, 2, 3, 4, 5], [7], [9, 8]]
    how = dict(context_length=12, sampling=Sampling(temperature=0))
    found = list(islice(generate(network, prompts, **how), 14))
    want = list(islice(generate(Uncached(network), prompts, **how), 14))
    assert found == want
    alone = list(islice(generate(network, prompts[:1], **how), 14))
    assert [row[0] for row in found] == [row[0] for row in alone]
