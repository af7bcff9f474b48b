"""Text generation by a language model, a token at a time."""

import itertools
import math
from collections.abc import Iterator, Sequence
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
    """Return an endless iterator of the tokens that follow a prompt.

    Args:
        network: maps tokens int32 [1, window] to logits [1, window, vocabulary], in
            evaluation mode; causal.
        prompt: at least one token; of a long one the last `context_length` are read.
        context_length: tokens that the network sees.
        temperature: divides the logits; 0 takes the likeliest token each time.
        seed: another seed is another text, where the temperature is above 0.

    Raises:
        ValueError: an empty prompt, or a negative or infinite temperature.
    """
    if not len(prompt) or not 0 <= temperature < math.inf:
        raise ValueError("a prompt has a token, and a temperature is at least 0")
    graph, state = nnx.split(network)

    def sample(state: Any, tokens: jax.Array, end: Any, key: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state)(tokens[None])[0, end].astype(jnp.float32)
        if temperature == 0:
            return logits.argmax()
        return jax.random.categorical(key, logits / temperature)

    def tokens() -> Iterator[int]:
        # Compiled once, for a window of fixed size: the padding after the last token
        # has no influence on it in a causal network.
        step, key = jax.jit(sample), jax.random.key(seed)
        last = list(prompt)[-context_length:]
        for count in itertools.count():
            padding = [0] * (context_length - len(last))
            window = jnp.asarray([*last, *padding], jnp.int32)
            end = jnp.int32(len(last) - 1)
            token = int(step(state, window, end, jax.random.fold_in(key, count)))
            yield token
            last = [*last, token][-context_length:]

    return tokens()
