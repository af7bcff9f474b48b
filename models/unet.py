"""U-Nets: the class of each pixel or voxel, by features of all scales.

Papers: Ronneberger, Fischer, Brox 2015, arXiv:1505.04597; Cicek et al. 2016,
arXiv:1606.06650.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair
from jaxdist.core.errors import BadInput
from jaxdist.layers import Conv, ConvTranspose, Dropout, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import ConvNormRelu


@dataclass(frozen=True, kw_only=True)
class UNetPreset(Preset):
    """Settings of a U-Net."""

    levels: int
    """Times that an image is halved, and doubled again."""


class PlainLevel(nnx.Module):
    """Two convolutions of one scale, as in the U-Net of images."""

    pairs = (ColumnRowPair(first=("conv1",), last="conv2"),)

    def __init__(
        self,
        features: tuple[int, int, int],
        preset: UNetPreset,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        first, second, third = features
        taps, start = (3,) * len(preset.image), nnx.initializers.he_normal()
        how = {"dtype": dtype, "kernel_init": start, "rngs": rngs}
        self.conv1 = Conv(first, second, taps, **how)
        self.conv2 = Conv(second, third, taps, **how)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return jax.nn.relu(self.conv2(jax.nn.relu(self.conv1(x))))


class NormLevel(nnx.Module):
    """Two convolutions of one scale with batch norm, as in the U-Net of volumes."""

    pairs = (
        ColumnRowPair(first=("conv1.conv",), last="conv2.conv", inner=("conv1.norm",)),
    )

    def __init__(
        self,
        features: tuple[int, int, int],
        preset: UNetPreset,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        first, second, third = features
        taps, pads = ((n,) * len(preset.image) for n in (3, 1))
        how = preset, dtype, rngs
        self.conv1 = ConvNormRelu((first, second), taps, *how, padding=pads)
        self.conv2 = ConvNormRelu((second, third), taps, *how, padding=pads)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return self.conv2(self.conv1(x))


class _UNet(nnx.Module):
    """A path down, a path up, and at each scale the features of the one for the other.

    Convolutions are padded, so that an answer has the rows of its image; the papers'
    are not, and their answers lack a border.
    """

    presets: ClassVar[dict[str, UNetPreset]]
    level: ClassVar[type[PlainLevel] | type[NormLevel]]
    """What is done at one scale."""
    early_double: ClassVar[bool]
    """Whether channels double within a level, before the next maximum."""
    keeps_channels: ClassVar[bool]
    """Whether going up keeps the channels, and has no bias."""

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        how, dims, self.levels = (dtype, rngs), len(preset.image), preset.levels
        wide, skips = preset.channels, list[int]()
        for i in range(preset.levels + 1):
            width = preset.width * 2**i
            end = 2 * width if self.early_double else width
            setattr(self, f"down{i}", self.level((wide, width, end), preset, *how))
            skips.append(wide := end)
            if i < preset.levels:
                setattr(self, f"pool{i}", MaxPool(2, 2))
        self.dropout = Dropout(preset.dropout)
        for i in reversed(range(preset.levels)):
            made = wide if self.keeps_channels else skips[i]
            up = ConvTranspose(
                wide,
                made,
                (2,) * dims,
                (2,) * dims,
                use_bias=not self.keeps_channels,
                dtype=dtype,
                kernel_init=nnx.initializers.he_normal(),
                rngs=rngs,
            )
            setattr(self, f"grow{i}", up)
            wide = skips[i]
            features = wide + made, wide, wide
            setattr(self, f"up{i}", self.level(features, preset, *how))
        self.head = Conv(wide, preset.classes, (1,) * dims, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images `[B, ..., channels]` to logits `[B, ..., classes]`.

        Raises:
            BadInput: rows that cannot be halved so often.
        """
        check_halvings(type(self).__name__, x.shape[1:-1], self.levels)
        skips: list[jax.Array] = []
        for i in range(self.levels + 1):
            with jax.named_scope(f"down{i}"):
                x = getattr(self, f"down{i}")(x)
            if i < self.levels:
                skips.append(x)
                x = getattr(self, f"pool{i}")(x)
        x = self.dropout(x)
        for i in reversed(range(self.levels)):
            x = getattr(self, f"grow{i}")(x)
            with jax.named_scope(f"up{i}"):
                x = getattr(self, f"up{i}")(jnp.concatenate([skips[i], x], -1))
        return self.head(x)


def check_halvings(network: str, rows: Sequence[int], levels: int) -> None:
    """Refuse images whose skips would have other rows than what comes up.

    Args:
        network: its name, for the error.
        rows: those of an image.
        levels: how often it is halved.

    Raises:
        BadInput: with rows that would do.
    """
    unit = 2**levels
    if any(n % unit for n in rows):
        near = max(max(rows) // unit, 1) * unit
        raise BadInput(
            f"the images of {network} cannot be halved {levels} times",
            rule=f"rows of an image are multiples of {unit}, so that what is "
            "doubled again lies on what was kept",
            values=f"an image is {' x '.join(map(str, rows))}",
            remedy=f"data.size={near}",
        )


class UNet2D(_UNet):
    """Four halvings of an image, two convolutions at each of nine places.

    Paper: Ronneberger et al. 2015, figure 1, with padded convolutions and dropout at
    the end of the path down, as in its reference (section 3.1). Input:
    `[B, 512, 512, 1]`, or rows that are multiples of 16.
    Parameters: 31,030,658. FLOPs a sample: 385 G.
    """

    level = PlainLevel
    early_double = False
    keeps_channels = False
    presets: ClassVar = {
        "full": UNetPreset(
            image=(512, 512), width=64, levels=4, classes=2, channels=1, dropout=0.5
        ),
        "tiny": UNetPreset(image=(16, 16), width=4, levels=2, classes=4, channels=1),
    }


class UNet3D(_UNet):
    """Three halvings of a volume, two convolutions at each of seven places.

    Paper: Cicek et al. 2016, figure 2, with padded convolutions: channels double before
    each maximum, batch norm before each ReLU. Its 19,069,955 parameters count one
    number a filter beside the kernels; scale and bias of a norm are two.
    Input: `[B, 112, 128, 128, 3]`, or rows that are multiples of 8.
    Parameters: 19,072,291. FLOPs a sample: 3.43 T.
    """

    level = NormLevel
    early_double = True
    keeps_channels = True
    presets: ClassVar = {
        "full": UNetPreset(
            image=(112, 128, 128), width=32, levels=3, classes=3, channels=3
        ),
        "tiny": UNetPreset(image=(8, 8, 8), width=2, levels=2, classes=4, channels=2),
    }
