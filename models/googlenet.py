"""GoogLeNet: inception modules (Szegedy et al. 2014, arXiv:1409.4842)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import jax
from flax import nnx

from jaxdist.layers import Dropout, GridMean, Linear, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import (
    Chain,
    ConvNormRelu,
    Fork,
    Head,
    Network,
    make_batch_norm,
)

BATCH_NORM_EPSILON: Final = 1e-3
"""Added to the variance by every batch norm, as in the reference."""

INCEPTION_FILTERS: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Filters of table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, behind the pooling."""


@dataclass(frozen=True, kw_only=True)
class GooglePreset(Preset):
    """Settings of a GoogLeNet."""

    dropout: float = 0.2
    """Share of features dropped before the head."""
    inceptions: tuple[str, ...]
    """Names of the inception modules and of the pooling between them."""


class GoogLeNet(Network):
    """Nine inception modules, in the variant with batch norm.

    Paper: Szegedy et al. 2014, arXiv:1409.4842. As in torchvision's `googlenet` every
    convolution has batch norm and no bias (the paper has biases and no norm), and the
    branches named 5x5 are 3x3.
    Input: `[B, 224, 224, 3]`, or any size of at least 32.
    Parameters: 6,624,904, and 6,379,984 in the two auxiliary heads of `model.aux`.
    FLOPs a sample: 3.00 G. Top-1: 69.778 % (torchvision).
    """

    presets: ClassVar = {
        "full": GooglePreset(
            image=(224, 224),
            width=64,
            inceptions=(
                *("3a", "3b", "pool3", "4a", "4b", "4c", "4d", "4e"),
                *("pool4", "5a", "5b"),
            ),
            aux_after=("inception4a", "inception4d"),
        ),
        "tiny": GooglePreset(
            image=(32, 32),
            width=8,
            classes=10,
            inceptions=("3a", "pool4"),
            aux_after=("inception3a",),
        ),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        how, w = (preset, dtype, rngs), preset.width
        blocks: dict[str, nnx.Module] = {
            "conv1": _unit((preset.channels, w), 7, *how, stride=2),
            # Rows past the edge, behind alone: the reference rounds sizes up.
            "pool1": MaxPool(3, 2, padding=((0, 1), (0, 1))),
            "conv2": _unit((w, w), 1, *how),
            "conv3": _unit((w, 3 * w), 3, *how),
            "pool2": MaxPool(3, 2, padding=((0, 1), (0, 1))),
        }
        wide, heads = 3 * w, dict[str, nnx.Module]()
        for name in preset.inceptions:
            if name.startswith("pool"):
                # pool4 has a window of 2 in the reference, where the paper has 3.
                size = 3 if name == "pool3" else 2
                blocks[name] = MaxPool(size, 2, padding=((0, 1), (0, 1)))
                continue
            block = f"inception{name}"
            filters = (preset.scaled(n, of=64) for n in INCEPTION_FILTERS[name])
            # Named as in table 1, though the fifth is 3x3: torchvision's weights are so
            # (its issue 906).
            one, red3, three, red5, five, pooled = filters
            blocks[block] = Fork(
                one=_unit((wide, one), 1, *how),
                three=Chain(
                    {
                        "reduce": _unit((wide, red3), 1, *how),
                        "conv": _unit((red3, three), 3, *how),
                    }
                ),
                five=Chain(
                    {
                        "reduce": _unit((wide, red5), 1, *how),
                        "conv": _unit((red5, five), 3, *how),
                    }
                ),
                pooled=Chain(
                    {
                        "pool": MaxPool(3, 1, padding=1),
                        "conv": _unit((wide, pooled), 1, *how),
                    }
                ),
            )
            wide = one + three + five + pooled
            if preset.aux and block in preset.aux_after:
                heads[block] = Auxiliary(wide, preset, dtype, rngs)
        blocks["head"] = Head(wide, preset, dtype, rngs)
        super().__init__(blocks, heads)


def _unit(
    features: tuple[int, int],
    size: int,
    preset: Preset,
    dtype: Any,
    rngs: nnx.Rngs,
    stride: int = 1,
) -> nnx.Module:
    pads, epsilon = size // 2, BATCH_NORM_EPSILON
    return ConvNormRelu(features, size, preset, dtype, rngs, stride, pads, epsilon)


class Auxiliary(nnx.Module):
    """An auxiliary head: mean to 4 x 4, 1x1 convolution, two dense layers."""

    def __init__(self, wide: int, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        features, dense = preset.scaled(128, of=64), preset.scaled(1024, of=64)
        self.mean = GridMean((4, 4))
        # A 1x1 convolution of positions that every device holds whole.
        self.conv = Linear(wide, features, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = make_batch_norm(features, preset, dtype, rngs, BATCH_NORM_EPSILON)
        self.dense1 = Linear(16 * features, dense, dtype=dtype, rngs=rngs)
        # Seven tenths are dropped: section 5 of the paper.
        self.dropout = Dropout(0.7)
        self.dense2 = Linear(dense, preset.classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map features `[B, H, W, C]` to logits `[B, classes]`."""
        y = self.mean(x)
        # The 4 x 4 positions as a dim of their own, each through the same dense layer.
        y = y.reshape(y.shape[0], 16, y.shape[-1])
        y = jax.nn.relu(self.norm(self.conv(y)))
        y = jax.nn.relu(self.dense1(y.reshape(y.shape[0], math.prod(y.shape[1:]))))
        return self.dense2(self.dropout(y))
