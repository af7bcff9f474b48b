"""Parts that several networks are made of: chains, forks, units and heads."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.block_protocol import SingleLayerBlock
from jaxdist.layers import BatchNorm, Conv, Dropout, GlobalMean, GridMean, Linear
from jaxdist.models.config import Preset

Layer = Any


class Chain(nnx.Module):
    """Named blocks, each called on what the one before returned."""

    def __init__(self, blocks: Mapping[str, nnx.Module]) -> None:
        # Names apart from the blocks: attributes of a module have no order.
        self.names = tuple(blocks)
        for name, block in blocks.items():
            setattr(self, name, block)

    def chain(self) -> Iterator[tuple[str, Layer]]:
        """Yield the named blocks in order; it may be cut between any two."""
        for name in self.names:
            yield name, getattr(self, name)

    def __call__(self, x: Any) -> Any:
        """Call the blocks in order."""
        for name, block in self.chain():
            with jax.named_scope(name):
                x = block(x)
        return x


class Network(Chain):
    """A chain from images to logits, with auxiliary heads where it has them.

    Args:
        blocks: the chain.
        heads: {block: head that reads what this block returns}.
    """

    def __init__(
        self,
        blocks: Mapping[str, nnx.Module],
        heads: Mapping[str, nnx.Module] | None = None,
    ) -> None:
        super().__init__(blocks)
        # Flax's own switch: `train()` and `eval()` set it as they set that of dropout.
        self.deterministic = False
        self.head_names = tuple((f"aux_{after}", after) for after in heads or {})
        for name, after in self.head_names:
            setattr(self, name, (heads or {})[after])

    def heads(self) -> dict[str, tuple[str, Layer]]:
        """Return {block: (name, head that reads its output)}."""
        return {after: (name, getattr(self, name)) for name, after in self.head_names}

    def __call__(self, x: jax.Array) -> Any:
        """Map images `[B, ..., channels]` to logits `[B, classes]`.

        Returns:
            The logits; in training with auxiliary heads a tuple of the logits and of
            each head's, in the order of the chain.
        """
        # Auxiliary heads are for training alone.
        heads, others = {} if self.deterministic else self.heads(), []
        for name, block in self.chain():
            with jax.named_scope(name):
                x = block(x)
            if name in heads:
                with jax.named_scope(heads[name][0]):
                    others.append(heads[name][1](x))
        return (x, *others) if others else x


class Fork(nnx.Module):
    """Branches that read the same features; their outputs are joined as channels."""

    def __init__(self, **branches: nnx.Module) -> None:
        self.names = tuple(branches)
        for name, branch in branches.items():
            setattr(self, name, branch)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., sum of the branches' channels]`."""
        outs = []
        for name in self.names:
            with jax.named_scope(name):
                # All branches read the same array: equal halos of theirs are fetched
                # once.
                outs.append(getattr(self, name)(x))
        return jnp.concatenate(outs, axis=-1)


class ConvNorm(nnx.Module):
    """A convolution without bias, and batch norm."""

    unit = SingleLayerBlock(weights="conv", behind=("norm",))

    def __init__(
        self,
        features: tuple[int, int],
        size: int | Sequence[int],
        preset: Preset,
        dtype: Any,
        rngs: nnx.Rngs,
        stride: int = 1,
        padding: int | Sequence[int] = 0,
        epsilon: float = 1e-5,
        last: bool = False,
    ) -> None:
        taps = (size, size) if isinstance(size, int) else tuple(size)
        pads = (padding, padding) if isinstance(padding, int) else tuple(padding)
        self.conv = Conv(
            *features,
            taps,
            stride,
            # Explicit rows: SAME would pad unevenly where a stride follows, unlike the
            # reference.
            padding=[(p, p) for p in pads],
            use_bias=False,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.norm = make_batch_norm(features[1], preset, dtype, rngs, epsilon, last)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H', W', C]`."""
        return self.norm(self.conv(x))


class ConvNormRelu(ConvNorm):
    """A convolution without bias, batch norm, ReLU."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H', W', C]`."""
        return jax.nn.relu(super().__call__(x))


class Flatten(nnx.Module):
    """Features on a fixed grid of positions, as one row a sample."""

    def __init__(self, grid: Sequence[int]) -> None:
        self.mean = GridMean(tuple(grid))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` to `[B, positions of the grid * C]`."""
        # The identity where the image has just the rows of the grid.
        y = self.mean(x)
        return y.reshape(y.shape[0], math.prod(y.shape[1:]))


class Dense(nnx.Module):
    """Dropout, then a dense layer."""

    unit = SingleLayerBlock(weights="dense", before=("dropout",))

    def __init__(
        self,
        features: tuple[int, int],
        dropout: float,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        self.dropout = Dropout(dropout)
        self.dense = Linear(
            *features,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, C_in]` to `[B, C]`."""
        return self.dense(self.dropout(x))


class DenseRelu(Dense):
    """Dropout, a dense layer, ReLU."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, C_in]` to `[B, C]`."""
        return jax.nn.relu(super().__call__(x))


class Head(nnx.Module):
    """Mean over positions, dropout, one dense layer."""

    def __init__(self, wide: int, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.mean = GlobalMean()
        self.dropout = Dropout(preset.dropout)
        self.dense = Linear(wide, preset.classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map features `[B, ..., C]` to logits `[B, classes]`."""
        return self.dense(self.dropout(self.mean(x)))


def make_batch_norm(
    features: int,
    preset: Preset,
    dtype: Any,
    rngs: nnx.Rngs,
    epsilon: float = 1e-5,
    last: bool = False,
) -> BatchNorm:
    """Return a batch norm whose statistics are shared as the preset says.

    Args:
        features: channels.
        preset: settings of the network.
        dtype: of activations.
        rngs: source of first weights.
        epsilon: added to the variance.
        last: whether it ends a residual block, whose scale may start at zero.
    """
    # With a scale of zero the block begins as its shortcut (Goyal et al. 2017, section
    # 5.1).
    zero = last and preset.zero_gamma
    # flax weighs the old statistics by its momentum, torch the new ones: 0.9 here is
    # 0.1 there.
    norm = BatchNorm(
        features,
        momentum=0.9,
        epsilon=epsilon,
        dtype=dtype,
        scale_init=nnx.initializers.zeros if zero else nnx.initializers.ones,
        rngs=rngs,
    )
    # Set behind the constructor: flax's own takes no such arguments.
    norm.statistics, norm.group = preset.norm, preset.norm_group
    return norm
