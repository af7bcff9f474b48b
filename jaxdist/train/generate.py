"""Text generation by a language model, a token of each text at a time.

Keys and values of the tokens before are kept (Pope et al. 2022, arXiv:2211.05102,
section 2), so that a token costs one pass over itself. A network without `extend`, and
texts that have filled the network's window, are read whole at each step.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxdist.train.objective import PackedNextToken


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn from logits.

    Raises:
        ValueError: a temperature below 0 or infinite, a negative `top_k`, or a `top_p`
            that is not above 0 and at most 1.
    """

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token each time."""
    top_k: int = 0
    """Draws of so many likeliest tokens alone (Fan et al. 2018, arXiv:1805.04833); 0:
    of all."""
    top_p: float = 1.0
    """Draws of the fewest tokens that are at least as likely together (Holtzman et al.
    2019, arXiv:1904.09751, nucleus sampling); 1: of all."""
    seed: int = 0
    """Another seed is another text, where the temperature is above 0."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError("a temperature is at least 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError("top_k is at least 0, and top_p above 0 and at most 1")

    def draw(self, logits: jax.Array, keys: jax.Array) -> jax.Array:
        """Draw a token of each text.

        Args:
            logits: [B, vocabulary].
            keys: random keys, [B].

        Returns:
            Tokens, int [B].
        """
        logits = logits.astype(jnp.float32)
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            # By value: of equally likely tokens at the border all stay.
            least = lax.top_k(logits, self.top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            ordered = -jnp.sort(-logits, -1)
            shares = jax.nn.softmax(ordered)
            # Those before which less than the share is taken: at least one.
            taken = shares.cumsum(-1) - shares < self.top_p
            least = jnp.where(taken, ordered, jnp.inf).min(-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.vmap(jax.random.categorical)(keys, logits)


_SAMPLING = Sampling()


def generate(
    network: nnx.Module,
    prompts: Sequence[Sequence[int]],
    *,
    context_length: int,
    sampling: Sampling = _SAMPLING,
) -> Iterator[list[int]]:
    """Return an endless iterator of the tokens that follow prompts, one of each.

    Args:
        network: maps tokens int32 [B, T] to logits [B, T, vocabulary], in evaluation
            mode; causal. Where it has `extend(tokens, positions, cache, length)`, what
            it has read is kept.
        prompts: at least one token each; of a long one the last `context_length` are
            read.
        context_length: tokens that the network sees.
        sampling: how tokens are drawn.

    Raises:
        ValueError: no prompt, or an empty one.
    """
    if not prompts or not all(map(len, prompts)):
        raise ValueError("a prompt has a token")
    return _Generation(network, context_length, sampling).tokens(prompts)


class _Generation:
    """The compiled steps of one network."""

    def __init__(self, network: Any, window: int, sampling: Sampling) -> None:
        graph, self._state = nnx.split(network)
        # A network for documents that share windows is shown one that has its own.
        objective = getattr(network, "objective", None)
        has_segments = isinstance(objective, PackedNextToken)
        self._window, self._has_cache = window, hasattr(network, "extend")
        self._key = jax.random.key(sampling.seed)

        def draw(logits: jax.Array, ends: jax.Array, key: jax.Array) -> jax.Array:
            rows = jnp.arange(logits.shape[0])
            # A key for each text, by its row: what one draws does not depend on the
            # others.
            keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
            return sampling.draw(logits[rows, ends], keys)

        def read(state: Any, tokens: Any, ends: Any, key: Any) -> jax.Array:
            segments = [jnp.zeros_like(tokens)] if has_segments else []
            return draw(nnx.merge(graph, state)(tokens, *segments), ends, key)

        def extend(
            state: Any, tokens: Any, positions: Any, ends: Any, cache: Any, key: Any
        ) -> tuple[jax.Array, Any]:
            model: Any = nnx.merge(graph, state)
            logits, cache = model.extend(tokens, positions, cache, window)
            return draw(logits, ends, key), cache

        self._read = jax.jit(read)
        # Donated, so that a token is written in place and the cache is not copied.
        self._extend = jax.jit(extend, donate_argnames="cache")

    def tokens(self, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the next token of each text, again and again."""
        window, cache = self._window, None
        texts = [list(prompt)[-window:] for prompt in prompts]
        for count in itertools.count():
            key = jax.random.fold_in(self._key, count)
            lengths = np.array([len(text) for text in texts])
            # A text that goes on behind its window moves in it, and every position with
            # it: nothing that was kept is right any more.
            if self._has_cache and lengths.max() <= window and cache is not False:
                kept = cache is not None
                new = [text[-1:] for text in texts] if kept else texts
                block, ends = _pad(new, max(map(len, new)))
                # The padding of shorter prompts is kept as well, at places that are
                # written over before a token reads so far.
                positions = np.broadcast_to(np.arange(block.shape[1]), block.shape)
                if kept:
                    positions = lengths[:, None] - 1
                found, cache = self._extend(
                    self._state,
                    block,
                    jnp.asarray(positions, jnp.int32),
                    ends,
                    cache,
                    key,
                )
            else:
                # For good: texts only get longer.
                cache = False
                texts = [text[-window:] for text in texts]
                # Of one size, so that it is compiled once: no token sees the padding.
                found = self._read(self._state, *_pad(texts, window), key)
            each = np.asarray(found).tolist()
            yield each
            for text, token in zip(texts, each, strict=True):
                text.append(token)


def _pad(texts: Sequence[Sequence[int]], size: int) -> tuple[jax.Array, jax.Array]:
    """Return texts as rows of a size, int32 [B, size], and the place of their last."""
    rows = np.zeros((len(texts), size), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    ends = [len(text) - 1 for text in texts]
    return jnp.asarray(rows), jnp.asarray(ends, jnp.int32)
