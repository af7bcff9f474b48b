"""U-Nets: the class of each pixel or voxel, by features of all scales.

Papers: Ronneberger, Fischer, Brox 2015, arXiv:1505.04597; Cicek et al. 2016,
arXiv:1606.06650.
"""

from abc import abstractmethod
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
from jaxdist.models.conv_blocks import Chain, ConvNormRelu


@dataclass(frozen=True, kw_only=True)
class UNetPreset(Preset):
    """Settings of a U-Net."""

    levels: int
    """Times that an image is halved, and doubled again."""


Features = jax.Array | tuple[jax.Array, ...]
"""What goes from level to level, `[B, ..., C]` each: the skips that levels on the way
up will read, highest first, and behind them the features of the last level."""


def split_features(features: Features) -> tuple[list[jax.Array], jax.Array]:
    """Return the skips, and the features of the last level."""
    # The image, and features behind the last skip, are bare arrays: the head is a plain
    # convolution, which takes no tuple.
    *skips, x = features if isinstance(features, tuple) else (features,)
    return skips, x


def join_features(skips: Sequence[jax.Array], x: jax.Array) -> Features:
    """Return what a level hands on: what `split_features` takes apart."""
    return (*skips, x) if skips else x


class Concat(nnx.Module):
    """Channels of one array, and behind them those of another, such as a skip.

    A layer, so that a profile counts what it makes: the convolution behind it keeps it.
    """

    def __call__(self, first: jax.Array, last: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` and `[B, ..., D]` to `[B, ..., C + D]`."""
        return jnp.concatenate([first, last], -1)


class UNetLevel(nnx.Module):
    """Two convolutions of one scale, and the way into it.

    Args:
        pool: on the way down; what it reads becomes a skip.
        grow: on the way up; what it makes is joined with the lowest skip.
        dropout: share of features dropped at its end.
    """

    def __init__(
        self,
        pool: MaxPool | None = None,
        grow: ConvTranspose | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.pool, self.grow, self.dropout = pool, grow, Dropout(dropout)
        self.concat = Concat()

    def __call__(self, features: Features) -> Features:
        """Map features of the level before to those of this one; other skips pass."""
        skips, x = split_features(features)
        # What leads to a level belongs to it: a cut behind the transposed convolution
        # would hand on twice as many features as one before it (docs/adr/0094).
        if self.pool is not None:
            skips, x = [*skips, x], self.pool(x)
        if self.grow is not None:
            x = self.concat(skips.pop(), self.grow(x))
        return join_features(skips, self.dropout(self.convolve(x)))

    @abstractmethod
    def convolve(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""


class PlainLevel(UNetLevel):
    """A level with two convolutions, as in the U-Net of images."""

    pairs = (ColumnRowPair(first=("conv1",), last="conv2"),)

    def __init__(
        self,
        widths: tuple[int, int, int],
        preset: UNetPreset,
        dtype: Any,
        rngs: nnx.Rngs,
        **way: Any,
    ) -> None:
        super().__init__(**way)
        first, second, third = widths
        taps, start = (3,) * len(preset.image), nnx.initializers.he_normal()
        how = {"dtype": dtype, "kernel_init": start, "rngs": rngs}
        self.conv1 = Conv(first, second, taps, **how)
        self.conv2 = Conv(second, third, taps, **how)

    def convolve(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return jax.nn.relu(self.conv2(jax.nn.relu(self.conv1(x))))


class NormLevel(UNetLevel):
    """A level with batch norm behind its convolutions, as in the U-Net of volumes."""

    pairs = (
        ColumnRowPair(first=("conv1.conv",), last="conv2.conv", inner=("conv1.norm",)),
    )

    def __init__(
        self,
        widths: tuple[int, int, int],
        preset: UNetPreset,
        dtype: Any,
        rngs: nnx.Rngs,
        **way: Any,
    ) -> None:
        super().__init__(**way)
        first, second, third = widths
        taps, pads = ((n,) * len(preset.image) for n in (3, 1))
        how = preset, dtype, rngs
        self.conv1 = ConvNormRelu((first, second), taps, *how, padding=pads)
        self.conv2 = ConvNormRelu((second, third), taps, *how, padding=pads)

    def convolve(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return self.conv2(self.conv1(x))


class _UNet(Chain):
    """A path down, a path up, and at each scale the features of the one for the other.

    A chain of levels: it may be cut between any two, and what is handed on there are
    the features of one and the skips that are still to be read. Convolutions are
    padded, so that an answer has the rows of its image; the papers' are not, and their
    answers lack a border.
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
        how, dims, levels = (dtype, rngs), len(preset.image), preset.levels
        wide, skips, blocks = preset.channels, list[int](), dict[str, nnx.Module]()
        # The way down. The last of these levels is the bottom, whose skip nobody reads.
        for i in range(levels + 1):
            width = preset.width * 2**i
            end = 2 * width if self.early_double else width
            blocks[f"down{i}"] = self.level(
                (wide, width, end),
                preset,
                *how,
                pool=MaxPool(2, 2) if i else None,
                dropout=preset.dropout if i == levels else 0.0,
            )
            skips.append(wide := end)
        # The way up. The U-Net of images halves its channels as it goes up, so that
        # both parts of what is joined are equally wide; that of volumes keeps them
        # (figure 2).
        for i in reversed(range(levels)):
            made = wide if self.keeps_channels else skips[i]
            grow = ConvTranspose(
                wide,
                made,
                (2,) * dims,
                (2,) * dims,
                use_bias=not self.keeps_channels,
                dtype=dtype,
                kernel_init=nnx.initializers.he_normal(),
                rngs=rngs,
            )
            wide = skips[i]
            widths = wide + made, wide, wide
            blocks[f"up{i}"] = self.level(widths, preset, *how, grow=grow)
        blocks["head"] = Conv(wide, preset.classes, (1,) * dims, dtype=dtype, rngs=rngs)
        super().__init__(blocks)
        self.levels = levels

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images `[B, ..., channels]` to logits `[B, ..., classes]`.

        Raises:
            BadInput: rows that cannot be halved so often.
        """
        check_halvings(type(self).__name__, x.shape[1:-1], self.levels)
        logits: jax.Array = super().__call__(x)
        return logits


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
        filled = ",".join(str(-(-n // unit) * unit) for n in rows)
        raise BadInput(
            f"the images of {network} cannot be halved {levels} times",
            rule=f"rows of an image are multiples of {unit}, so that what is "
            "doubled again lies on what was kept",
            values=f"an image is {' x '.join(map(str, rows))}",
            remedy=(
                f"data.size={near}, for images that are drawn",
                f"jaxdist prepare FORMAT:PATH --name NAME --size {filled}, for those "
                "of files",
            ),
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
