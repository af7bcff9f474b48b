"""Parts of Transformers: sizes, attention, feed-forward, tables, positions."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdist.core.block_protocol import AttentionInputs, ColumnRowPair
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import ContextForm
from jaxdist.layers import (
    Dropout,
    Embed,
    Experts,
    Linear,
    cached_attention,
    causal_attention,
)
from jaxdist.layers.experts import Routing
from jaxdist.layers.tensor_role import broadcast_param
from jaxdist.layers.token_order import context_devices, local_tokens, token_positions
from jaxdist.models.config import ModelConfig
from jaxdist.models.rope_scaling import RopeScaling

Layer = Any
Make = Callable[..., Any]
Activations = jax.Array | tuple[jax.Array, jax.Array]
"""What goes from block to block: vectors `[B, T, C]`, and beside them, where windows
hold several documents, their segments, int32 `[B, T]`: for each token the place in the
window at which its document begins."""

_BALANCE_WEIGHT: Final = 0.01
"""Weight of the load-balancing loss (Fedus et al. 2021, section 2.2)."""
_INIT_STD: Final = 0.02
"""Standard deviation of first weights (Radford et al. 2019)."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a Transformer."""

    vocabulary: int
    """Distinct tokens."""
    context: int
    """Most tokens of a sample."""
    depth: int
    """Blocks."""
    heads: int
    """Attention heads."""
    kv_heads: int
    """Heads of keys and values, `heads` a multiple of it."""
    embed: int
    """Features of a token, a multiple of `heads`."""
    hidden: int
    """Features inside the feed-forward part."""
    head_size: int | None = None
    """Features of a head; None: `embed` / `heads`."""
    experts: int = 0
    """Experts of the feed-forward part; 0: it is one for all tokens."""
    chosen_experts: int = 2
    """Experts that a token goes through."""

    def __post_init__(self) -> None:
        if 0 < self.experts < self.chosen_experts:
            raise BadInput(
                f"a token cannot go through {self.chosen_experts} of {self.experts} "
                "experts",
                rule="model.chosen_experts is at most model.experts",
                values=f"model.chosen_experts = {self.chosen_experts}, "
                f"model.experts = {self.experts}",
                remedy=(
                    f"model.chosen_experts={self.experts}",
                    f"model.experts={self.chosen_experts}",
                ),
            )
        # Rotary positions rotate features in pairs.
        if self.head_size is not None and self.head_size % 2:
            raise BadInput(
                "the features of a head are no pairs",
                rule="model.head_size is even",
                values=f"model.head_size = {self.head_size}",
                remedy=f"model.head_size={self.head_size + 1}",
            )
        pairs = 2 * self.heads
        if self.head_size is None and self.embed % pairs:
            raise BadInput(
                "a token's features do not divide over the heads",
                rule="model.embed is a multiple of 2 x model.heads",
                values=f"model.embed = {self.embed}, model.heads = {self.heads}",
                remedy=f"model.embed={max(round(self.embed / pairs), 1) * pairs}",
            )
        if self.heads % self.kv_heads:
            fitting = (n for n in range(1, self.heads + 1) if self.heads % n == 0)
            near = min(fitting, key=lambda n: abs(n - self.kv_heads))
            raise BadInput(
                "the heads do not divide over those of keys and values",
                rule="model.heads is a multiple of model.kv_heads",
                values=f"model.heads = {self.heads}, model.kv_heads = {self.kv_heads}",
                remedy=f"model.kv_heads={near}",
            )

    @property
    def head(self) -> int:
        """Features of one head."""
        return self.head_size or self.embed // self.heads


class KeyValues(NamedTuple):
    """What attention keeps of the tokens of texts, at the position of each."""

    keys: jax.Array
    """`[B, T, kv_heads, features]`."""
    values: jax.Array
    """`[B, T, kv_heads, features]`."""


class Attention(nnx.Module):
    """Causal self-attention; several heads may share keys and values.

    Args:
        turn: applied to queries and keys `[B, T, heads, features]`.
        linear: makes a linear layer, `linear(features_in, features_out)`.
        last: makes the one that writes to the residual path.
    """

    attention_platform: str = ""
    context_form: ContextForm = "all_gather"

    def __init__(self, sizes: Sizes, turn: Layer, linear: Make, last: Make) -> None:
        self.head, self.turn = sizes.head, turn
        self.query = linear(sizes.embed, sizes.heads * sizes.head)
        self.key = linear(sizes.embed, sizes.kv_heads * sizes.head)
        self.value = linear(sizes.embed, sizes.kv_heads * sizes.head)
        self.out = last(sizes.heads * sizes.head, sizes.embed)
        made = ("query", "key", "value")
        self.pairs = (ColumnRowPair(first=made, last="out", unit=sizes.head),)
        self.attends = AttentionInputs(
            query="query", key="key", value="value", features=sizes.head
        )

    def __call__(self, x: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Let each token of `[B, T, C]` read itself and those before it.

        Args:
            x: `[B, T, C]`.
            segments: int32 `[B, T]`, where the document of each token begins, of which
                alone it reads; None: a window is one document.
        """
        query, key, value = self._project(x)
        positions = document_positions(segments)
        query, key = self.turn(query, positions), self.turn(key, positions)
        read = causal_attention(
            query,
            key,
            value,
            platform=self.attention_platform,
            context=self.context_form,
            segments=segments,
        )
        return self.out(read.reshape(*x.shape[:2], -1))

    def extend(
        self, x: jax.Array, positions: jax.Array, cache: KeyValues | None, length: int
    ) -> tuple[jax.Array, KeyValues]:
        """Let tokens read themselves and those that are kept, and keep them too.

        Args:
            x: `[B, n, C]`, of n tokens behind those that are kept.
            positions: their places, int32 `[B, n]`, below `length`.
            cache: what is kept of the tokens before; None: there are none.
            length: most tokens of a text.
        """
        query, key, value = self._project(x)
        turned = [self.turn(each, positions, length) for each in (query, key)]
        if cache is None:
            shape = (key.shape[0], length, *key.shape[2:])
            cache = KeyValues(*(jnp.zeros(shape, y.dtype) for y in (key, value)))
        rows = jnp.arange(x.shape[0])[:, None]
        kept = KeyValues(
            keys=cache.keys.at[rows, positions].set(turned[1]),
            values=cache.values.at[rows, positions].set(value),
        )
        read = cached_attention(turned[0], kept.keys, kept.values, positions)
        return self.out(read.reshape(*x.shape[:2], -1)), kept

    def _project(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Return queries, keys and values of tokens, `[B, T, heads, features]`."""
        # -1: as many heads as the slice of the layers' filters that is here.
        shape = (*x.shape[:2], -1, self.head)
        layers = (self.query, self.key, self.value)
        return tuple(layer(x).reshape(shape) for layer in layers)


class Gelu(nnx.Module):
    """Two linear layers with a GELU between (Hendrycks and Gimpel 2016)."""

    pairs = (ColumnRowPair(first=("up",), last="down"),)

    def __init__(self, sizes: Sizes, linear: Make, last: Make) -> None:
        self.up = linear(sizes.embed, sizes.hidden)
        self.down = last(sizes.hidden, sizes.embed)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map each token of `[B, T, C]` by itself."""
        # Computed again in the backward pass, as that of SwiGlu: it would keep several
        # arrays as large as its input.
        return self.down(jax.checkpoint(jax.nn.gelu)(self.up(x)))


def _swiglu(gate: jax.Array, x: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * x


class SwiGlu(nnx.Module):
    """A linear layer gated by the SiLU of another (Shazeer 2020, arXiv:2002.05202)."""

    pairs = (ColumnRowPair(first=("gate", "up"), last="down"),)

    def __init__(self, sizes: Sizes, linear: Make, last: Make) -> None:
        self.gate = linear(sizes.embed, sizes.hidden)
        self.up = linear(sizes.embed, sizes.hidden)
        self.down = last(sizes.hidden, sizes.embed)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map each token of `[B, T, C]` by itself."""
        return self.down(jax.checkpoint(_swiglu)(self.gate(x), self.up(x)))


class Block(nnx.Module):
    """Attention, then feed-forward, each behind a norm and beside a shortcut."""

    def __init__(self, parts: "Parts", attention: Layer, mlp: Layer) -> None:
        self.norm1, self.attention = parts.norm(), attention
        self.norm2, self.mlp = parts.norm(), mlp
        self.dropout1, self.dropout2 = Dropout(parts.dropout), Dropout(parts.dropout)

    def __call__(self, x: Activations) -> Activations:
        """Map tokens `[B, T, C]` to `[B, T, C]`; segments go through."""
        x, segments = split_segments(x)
        x = x + self.dropout1(self.attention(self.norm1(x), segments))
        x = x + self.dropout2(self.mlp(self.norm2(x)))
        return x if segments is None else (x, segments)

    def extend(
        self, x: jax.Array, positions: jax.Array, cache: KeyValues | None, length: int
    ) -> tuple[jax.Array, KeyValues]:
        """Map tokens behind those that are kept; see `Attention.extend`."""
        read, kept = self.attention.extend(self.norm1(x), positions, cache, length)
        x = x + self.dropout1(read)
        return x + self.dropout2(self.mlp(self.norm2(x))), kept


class Embedding(nnx.Module):
    """A vector for each token, and for each position where there is a table of them."""

    def __init__(self, parts: "Parts", *, positions: bool) -> None:
        sizes = parts.sizes
        self.context = sizes.context
        self.tokens = parts.table(sizes.vocabulary)
        self.positions = parts.table(sizes.context) if positions else None
        if self.positions is not None:
            self.positions.stays_whole = True
        self.dropout = Dropout(parts.dropout)

    def __call__(self, x: Activations) -> Activations:
        """Map tokens int32 `[B, T]` to vectors `[B, T, C]`; segments go through.

        Raises:
            BadInput: more tokens than the context.
        """
        tokens, segments = split_segments(x)
        count = tokens.shape[1]
        whole = count * context_devices()
        if whole > self.context:
            raise BadInput(
                "a sample has more tokens than the network can take",
                rule="data.context is at most model.context",
                values=f"data.context = {whole}, model.context = {self.context}",
                remedy=f"data.context={self.context}, or model.context={whole}",
            )
        places = document_positions(segments)
        if places is None:
            # One row of positions for all samples: broadcast over the batch.
            places = token_positions(count)
        y = self.look_up(tokens, places)
        return y if segments is None else (y, segments)

    def look_up(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """Return vectors of tokens int32 `[B, T]` at positions `[B, T]` or `[T]`."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + broadcast_param(self.positions(positions), x)
        return self.dropout(x)


class Head(nnx.Module):
    """A norm, then the product with a vector for each token: logits.

    Args:
        table: the embedding's own vectors; None for others.
    """

    def __init__(self, parts: "Parts", table: Embed | None) -> None:
        self.norm, self.table = parts.norm(), table
        sizes, plain = parts.sizes, replace(parts, bias=False)
        self.logits: Layer = (
            plain.linear(sizes.embed, sizes.vocabulary) if table is None else None
        )

    def __call__(self, x: Activations) -> jax.Array:
        """Map `[B, T, C]` to logits `[B, T, vocabulary]`."""
        y = self.norm(split_segments(x)[0])
        return self.logits(y) if self.table is None else self.table.attend(y)


def split_segments(x: Activations) -> tuple[jax.Array, jax.Array | None]:
    """Return vectors or tokens, and their segments where there are any."""
    return x if isinstance(x, tuple) else (x, None)


def document_positions(segments: jax.Array | None) -> jax.Array | None:
    """Return the place of each token in its document, int32 `[B, T]`, from 0.

    Where several devices share the tokens of a window, of this device's; segments are
    those of whole windows.

    >>> document_positions(jnp.array([[0, 0, 2, 2, 2]], jnp.int32)).tolist()
    [[0, 1, 0, 1, 2]]
    """
    if segments is None:
        return None
    own = local_tokens(segments, 1)
    return token_positions(own.shape[1]).astype(own.dtype) - own


class Rotary(nnx.Module):
    """Turns pairs of features by angles that grow with the position (RoPE).

    Pair i of D features turns by position * base**(-2 i / D); feature i is paired with
    i + D/2. Su et al. 2021, arXiv:2104.09864, section 3.4.2.

    Args:
        base: of the frequencies.
        scaling: stretches them for longer contexts.
    """

    def __init__(self, base: float, scaling: RopeScaling | None = None) -> None:
        self.base, self.scaling = base, scaling

    def __call__(
        self, x: jax.Array, positions: jax.Array | None = None, length: int = 0
    ) -> jax.Array:
        """Turn queries or keys.

        Args:
            x: `[B, T, heads, D]`, D even.
            positions: int32 `[B, T]`, less than `length`; None: from 0 to T - 1.
            length: 0: T.
        """
        count, half = length or x.shape[1] * context_devices(), x.shape[-1] // 2
        # Angles in NumPy's float64: float32 would lose digits at long positions.
        rates = self.base ** (-np.arange(half) / half)
        if self.scaling is not None:
            rates = self.scaling.stretch(rates, count)
        angles = np.arange(count)[:, None, None] * rates
        full = accumulation_dtype(x.dtype)
        cos, sin = (jnp.asarray(f(angles), full) for f in (np.cos, np.sin))
        if positions is None:
            cos, sin = (local_tokens(each, 0) for each in (cos, sin))
        else:
            cos, sin = cos[positions], sin[positions]
        # Halves, not neighbours: feature i is paired with i + D/2.
        left, right = jnp.split(x.astype(full), 2, axis=-1)
        turned = (left * cos - right * sin, right * cos + left * sin)
        return jnp.concatenate(turned, -1).astype(x.dtype)


class Still(nnx.Module):
    """Leaves queries and keys as they are: positions were added before."""

    def __call__(
        self, x: jax.Array, positions: jax.Array | None = None, length: int = 0
    ) -> jax.Array:
        """Return `x`."""
        return x


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Makes the layers of one network, all with its sizes, dtype and first weights."""

    sizes: Sizes
    """Sizes of the network."""
    dropout: float
    """Share of features dropped before each sum with a shortcut."""
    dtype: Any
    """Dtype of activations; None follows the parameters."""
    rngs: nnx.Rngs
    """Source of first weights."""
    norms: Make
    """Class of the norms."""
    bias: bool
    """Whether linear layers have biases."""
    qkv_bias: bool = False
    """Whether those of queries, keys and values have them, others or not."""
    epsilon: float = 1e-5
    """Added to a variance: that of GPT-2 and of Llama 3 alike."""

    def norm(self) -> Layer:
        """Make a norm over the features."""
        return self.norms(
            self.sizes.embed, epsilon=self.epsilon, dtype=self.dtype, rngs=self.rngs
        )

    def projection(self, wide_in: int, wide_out: int) -> Layer:
        """Make the linear layer of queries, keys or values."""
        return replace(self, bias=self.bias or self.qkv_bias).linear(wide_in, wide_out)

    def linear(self, wide_in: int, wide_out: int, spread: float = _INIT_STD) -> Layer:
        """Make a linear layer."""
        return Linear(
            wide_in,
            wide_out,
            use_bias=self.bias,
            dtype=self.dtype,
            kernel_init=nnx.initializers.normal(spread),
            rngs=self.rngs,
        )

    def last(self, wide_in: int, wide_out: int) -> Layer:
        """Make a linear layer whose output is added to a shortcut: 2 a block."""
        # Smaller by the number of sums, so that the residual path keeps its scale.
        spread = _INIT_STD / math.sqrt(2 * self.sizes.depth)
        return self.linear(wide_in, wide_out, spread)

    def experts(self, config: ModelConfig) -> Experts:
        """Make a router and its experts.

        Args:
            config: their capacity, and the weights of their losses.
        """
        sizes, balance = self.sizes, config.balance_weight
        return Experts(
            sizes.embed,
            sizes.hidden,
            sizes.experts,
            Routing(
                chosen=sizes.chosen_experts,
                capacity_factor=config.capacity_factor,
                balance_weight=_BALANCE_WEIGHT if balance is None else balance,
                z_weight=config.router_z_weight,
            ),
            spreads=(_INIT_STD / math.sqrt(2 * sizes.depth), _INIT_STD),
            dtype=self.dtype,
            rngs=self.rngs,
        )

    def table(self, rows: int) -> Embed:
        """Make a table of vectors."""
        table = Embed(
            rows,
            self.sizes.embed,
            embedding_init=nnx.initializers.normal(_INIT_STD),
            rngs=self.rngs,
        )
        # Without a dtype flax would fix that of the first weights, also for float64.
        table.dtype = self.dtype
        return table
