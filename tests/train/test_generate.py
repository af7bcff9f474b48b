"""Generating: what follows depends on what the network is shown, and on nothing else."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.train.generate import generate


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


def taken(network, prompt, count, **how):
    return list(islice(generate(network, prompt, **how), count))


@pytest.mark.parametrize("temperature", [0, 1])
def test_it_counts_on_past_the_window(temperature):
    found = taken(Counter(), [3], 12, context_length=4, temperature=temperature)
    assert found == [(4 + i) % 10 for i in range(12)]


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


@pytest.mark.parametrize("how", [dict(prompt=[]), dict(temperature=-1.0)])
def test_nothing_to_go_on_from(how):
    with pytest.raises(ValueError, match="prompt"):
        generate(Counter(), **{"prompt": [1], "context_length": 4, **how})
