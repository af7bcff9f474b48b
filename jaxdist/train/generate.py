"""Generating: a language model that continues a text, a token at a time."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def generate(
    network: nnx.Module,
    prompt: Sequence[int],
    *,
    context_length: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[int]:
    """Yield the tokens that follow a prompt, without end.

    The network is compiled once, for a window of fixed size: it reads the last
    `context_length` tokens, and what is behind the last token has no part in a causal
    network.

    Args:
        network: maps tokens int32 [1, window] to logits [1, window, vocabulary], in
            evaluation mode.
        prompt: at least one token; of a long one the last `context_length` are read.
        context_length: tokens that the network sees.
        temperature: divides the logits; 0 takes the likeliest token each time.
        seed: another seed is another text, where the temperature is above 0.

    Raises:
        ValueError: an empty prompt, or a temperature that is none.
    """
    if not len(prompt) or not 0 <= temperature < math.inf:
        raise ValueError("a prompt has a token, and a temperature is at least 0")
    graph, state = nnx.split(network)
    follow = jax.jit(partial(_next_token, graph, temperature))
    return _generate_tokens(follow, state, prompt, context_length, jax.random.key(seed))


def _generate_tokens(
    follow: Any, state: Any, prompt: Sequence[int], window: int, key: jax.Array
) -> Iterator[int]:
    last = list(prompt)[-window:]
    count = 0
    while True:
        padded = jnp.asarray([*last, *[0] * (window - len(last))], jnp.int32)
        end, draw = jnp.int32(len(last) - 1), jax.random.fold_in(key, count)
        token = int(follow(state, padded, end, draw))
        yield token
        last, count = [*last, token][-window:], count + 1


def _next_token(
    graph: Any,
    temperature: float,
    state: Any,
    tokens: jax.Array,
    end: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Choose the token behind place `end` of `tokens [window]`."""
    logits = nnx.merge(graph, state)(tokens[None])[0, end].astype(jnp.float32)
    if temperature == 0:
        return logits.argmax()
    return jax.random.categorical(key, logits / temperature)
