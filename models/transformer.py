"""Decoder-only Transformers: GPT-2 and the Llama family, one chain of blocks each."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

import jax
from flax import nnx

from jaxdist.core.block_protocol import LogitsLayer, ResidualStream
from jaxdist.core.errors import BadInput
from jaxdist.layers import LayerNorm, RMSNorm
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.models.rope_scaling import RopeScaling
from jaxdist.models.transformer_blocks import (
    Attention,
    Block,
    Embedding,
    Gelu,
    Head,
    KeyValues,
    Layer,
    Parts,
    Rotary,
    Sizes,
    Still,
    SwiGlu,
)

_EXPERT_KEYS: Final = (
    *("chosen_experts", "capacity_factor"),
    *("balance_weight", "router_z_weight"),
)
"""Settings that say something of experts alone."""


class Transformer(Chain):
    """A chain of an embedding, blocks, and the head that makes logits of tokens."""

    FULL: ClassVar[Sizes]
    TINY: ClassVar[Sizes]
    EPSILON: ClassVar = 1e-5
    """Keeps norms finite, where `model.norm_epsilon` is not set."""

    def __init__(
        self,
        parts: Parts,
        embed: Embedding,
        turn: Layer,
        mlp: Callable[[Parts], Layer],
        *,
        tied_head: bool = True,
    ) -> None:
        blocks: dict[str, Layer] = {}
        for i in range(parts.sizes.depth):
            attention = Attention(parts.sizes, turn, parts.projection, parts.last)
            blocks[f"block{i}"] = Block(parts, attention, mlp(parts))
        head = Head(parts, embed.tokens if tied_head else None)
        super().__init__({"embed": embed, **blocks, "head": head})
        self.answers = LogitsLayer(layer="head.logits", is_output=True)
        if tied_head:
            self.answers = LogitsLayer(
                layer="embed.tokens", method="attend", is_output=True
            )
        # Norms and dropout treat each token by itself, so that tokens may be split
        # between a block's pairs of layers (sequence parallelism).
        parts_of = [f"{block}.{{}}{n}" for block in blocks for n in (1, 2)]
        positions = ("embed.positions",) if embed.positions is not None else ()
        self.stream = ResidualStream(
            start=("embed.tokens", *positions),
            along=("embed.dropout", *(part.format("dropout") for part in parts_of)),
            ends=(*(part.format("norm") for part in parts_of), "head.norm"),
        )

    def __call__(self, x: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Map tokens to logits `[B, T, vocabulary]` of those that follow.

        Args:
            x: tokens, int32 `[B, T]`.
            segments: int32 `[B, T]`, for each token the place in the window at which
                its document begins: tokens see their own document alone, and positions
                are counted in it. None: a window is one document.
        """
        logits: jax.Array = super().__call__(x if segments is None else (x, segments))
        return logits

    def extend(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        cache: tuple[KeyValues, ...] | None,
        length: int,
    ) -> tuple[jax.Array, tuple[KeyValues, ...]]:
        """Read some tokens more of texts whose keys and values are kept.

        Args:
            tokens: int32 `[B, n]`.
            positions: their places, int32 `[B, n]`, below `length`; what is kept there
                is written over, and what lies behind is not read.
            cache: what was returned before; None: nothing is kept yet.
            length: most tokens of a text.

        Returns:
            Logits `[B, n, vocabulary]`, and what is kept of each block.
        """
        (_, embed), *blocks, (_, head) = self.chain()
        x, kept = embed.look_up(tokens, positions), []
        for (_, block), own in zip(blocks, cache or (None,) * len(blocks), strict=True):
            x, held = block.extend(x, positions, own, length)
            kept.append(held)
        logits: jax.Array = head(x)
        return logits, tuple(kept)

    @classmethod
    def sizes(cls, config: ModelConfig) -> Sizes:
        """Return the sizes of a configuration: what it leaves open is the preset's.

        Raises:
            BadInput: sizes that do not divide.
        """
        preset = cls.TINY if config.size == "tiny" else cls.FULL
        if not (config.experts or preset.experts):
            _refuse_expert_keys(config)
        names = (
            *("vocabulary", "context", "depth", "heads", "embed", "head_size"),
            *("experts", "chosen_experts"),
        )
        given = {key: getattr(config, key) for key in names}
        sizes = {key: value for key, value in given.items() if value is not None}
        # Sizes that follow from others follow those that are set: hidden 4 x embed, as
        # many heads of keys as of queries.
        if config.embed is not None or config.hidden is not None:
            sizes["hidden"] = config.hidden or 4 * sizes.get("embed", preset.embed)
        if config.heads is not None or config.kv_heads is not None:
            sizes["kv_heads"] = config.kv_heads or sizes["heads"]
        return replace(preset, **sizes)


def _refuse_expert_keys(config: ModelConfig) -> None:
    """Refuse settings of experts, for a network that has none."""
    for key in _EXPERT_KEYS:
        if value := getattr(config, key):
            raise BadInput(
                f"model.{key} is for networks with experts",
                rule="model.experts gives a llama experts; mixtral has them",
                values=f"model.{key} = {value}, model.name = {config.name}, "
                "model.experts = None",
                remedy=(
                    "model.name=mixtral",
                    "model.name=llama model.experts=8",
                    f"no model.{key}",
                ),
            )


class Gpt2(Transformer):
    """GPT-2 small: learned positions, LayerNorm before each part, GELU, biases.

    Paper: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners",
    the smallest of its table 2; Pre-LN as in section 2.3. Input: tokens `[B, T]`, T at
    most 1,024 of 50,257. Parameters: 124,439,808, the embedding counted once: it is the
    head as well. FLOPs a sample of 1,024 tokens, forward: 293 G. Dropout is before the
    shortcuts and behind the embedding; attention weights are not dropped.
    """

    FULL = Sizes(
        vocabulary=50257,
        context=1024,
        depth=12,
        heads=12,
        kv_heads=12,
        embed=768,
        hidden=3072,
    )
    TINY = Sizes(
        vocabulary=64, context=16, depth=1, heads=4, kv_heads=4, embed=32, hidden=64
    )

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        if config.experts:
            raise BadInput(
                "gpt2_small has no experts",
                rule="model.experts is for the llama family",
                values=f"model.name = {config.name}, model.experts = {config.experts}",
                remedy=("model.experts=None", "model.name=mixtral"),
            )
        parts = Parts(
            sizes=self.sizes(config),
            dropout=config.dropout or 0.0,
            dtype=dtype,
            rngs=rngs,
            norms=LayerNorm,
            bias=True,
            epsilon=config.norm_epsilon or self.EPSILON,
        )
        super().__init__(
            parts,
            Embedding(parts, positions=True),
            Still(),
            lambda parts: Gelu(parts.sizes, parts.linear, parts.last),
            tied_head=config.tied_head,
        )


class Llama(Transformer):
    """Llama 3.2 1B: rotary positions, RMSNorm, SwiGLU, grouped queries, no biases.

    Paper: Grattafiori et al. 2024, arXiv:2407.21783, section 3.2; the sizes are those
    of the published 1B model. Input: tokens `[B, T]`, T at most 8,192 of 128,256; its
    frequencies are stretched for longer ones where `model.rope_scaling` says so.
    Parameters: 1,235,814,400, the embedding counted once: it is the head as well. FLOPs
    a sample of 8,192 tokens, forward: 29.3 T.
    """

    FULL = Sizes(
        vocabulary=128256,
        context=8192,
        depth=16,
        heads=32,
        kv_heads=8,
        embed=2048,
        hidden=8192,
    )
    TINY = Sizes(
        vocabulary=64, context=16, depth=1, heads=4, kv_heads=2, embed=32, hidden=64
    )
    ROPE_BASE: ClassVar = 5e5
    """Grattafiori et al. 2024, section 3.2: for long contexts."""

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        parts = Parts(
            sizes=self.sizes(config),
            dropout=config.dropout or 0.0,
            dtype=dtype,
            rngs=rngs,
            norms=RMSNorm,
            bias=False,
            qkv_bias=config.qkv_bias,
            epsilon=config.norm_epsilon or self.EPSILON,
        )
        scaling = None
        if config.rope_scaling != "none":
            scaling = RopeScaling(
                kind=config.rope_scaling,
                factor=config.rope_factor,
                low_factor=config.rope_low_factor,
                high_factor=config.rope_high_factor,
                context=config.rope_context or parts.sizes.context,
            )
        super().__init__(
            parts,
            Embedding(parts, positions=False),
            Rotary(config.rope_base or self.ROPE_BASE, scaling),
            partial(self._feed_forward, config),
            tied_head=config.tied_head,
        )

    @staticmethod
    def _feed_forward(config: ModelConfig, parts: Parts) -> Layer:
        if parts.sizes.experts:
            return parts.experts(config)
        return SwiGlu(parts.sizes, parts.linear, parts.last)


class Mixtral(Llama):
    """Mixtral 8x7B: a llama with 8 experts in each block, 2 of which a token takes.

    Paper: Jiang et al. 2024, arXiv:2401.04088, section 2 and table 1. Input: tokens
    `[B, T]`, T at most 32,768 of 32,000. Parameters: 46,571,720,704, and 46,702,792,704
    with the head of its own that was published (`model.tied_head=false`), of which a
    token reads 12,879,925,248. FLOPs a sample of 32,768 tokens, forward: 1,405 T.
    """

    FULL = Sizes(
        vocabulary=32000,
        context=32768,
        depth=32,
        heads=32,
        kv_heads=8,
        embed=4096,
        hidden=14336,
        experts=8,
    )
    TINY = Sizes(
        vocabulary=64,
        context=16,
        depth=1,
        heads=4,
        kv_heads=2,
        embed=32,
        hidden=64,
        experts=4,
    )
    ROPE_BASE = 1e6
