"""The residual encoder U-Net of nnU-Net (Isensee et al. 2024, arXiv:2404.09556)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair
from jaxdist.layers import AvgPool, Conv, ConvTranspose, InstanceNorm
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import Chain
from jaxdist.models.unet import (
    Concat,
    Features,
    check_halvings,
    join_features,
    split_features,
)


@dataclass(frozen=True, kw_only=True)
class ResEncPreset(Preset):
    """Settings of a residual encoder U-Net."""

    blocks: tuple[int, ...]
    """Residual blocks of each scale; the volume is halved between two."""
    most: int
    """Most channels of a scale; they double from one to the next until then."""


class ConvInstanceNorm(nnx.Module):
    """A convolution and an instance norm; bias where the reference has one."""

    def __init__(
        self,
        features: tuple[int, int],
        size: int,
        dtype: Any,
        rngs: nnx.Rngs,
        stride: int = 1,
        use_bias: bool = True,
    ) -> None:
        pads = size // 2
        self.conv = Conv(
            *features,
            (size,) * 3,
            stride,
            padding=[(pads, pads)] * 3,
            use_bias=use_bias,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        # The norm takes a bias before it away again. The reference has it all the same,
        # and parameters are counted as there.
        self.norm = InstanceNorm(features[1], epsilon=1e-5, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return self.norm(self.conv(x))


class ConvInstanceNormRelu(ConvInstanceNorm):
    """The same, and nnU-Net's leaky ReLU behind it."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C_in]` to `[B, ..., C]`."""
        return _relu(super().__call__(x))


class ResidualBlock(nnx.Module):
    """Two 3x3x3 convolutions beside a shortcut: a mean of two, 1x1x1 for more channels.

    He et al. 2015, arXiv:1512.03385, with the shortcut of He et al. 2019,
    arXiv:1812.01187, figure 2c. What a block of stride 2 reads becomes a skip.
    """

    pairs = (
        ColumnRowPair(first=("conv1.conv",), last="conv2.conv", inner=("conv1.norm",)),
    )

    def __init__(
        self, features: tuple[int, int], stride: int, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        wide, width = features
        how = dtype, rngs
        self.conv1 = ConvInstanceNormRelu(features, 3, *how, stride)
        self.conv2 = ConvInstanceNorm((width, width), 3, *how)
        # A 1x1x1 convolution of stride 2 would read one voxel in eight (He et al. 2019,
        # section 4).
        self.pool = AvgPool(stride, stride) if stride > 1 else None
        self.shortcut = (
            ConvInstanceNorm(features, 1, *how, use_bias=False)
            if wide != width
            else None
        )

    def __call__(self, features: Features) -> Features:
        """Map the last features to `[B, ..., C]`, rows over the stride; skips pass."""
        skips, x = split_features(features)
        y = self.conv2(self.conv1(x))
        if self.pool is not None:
            skips, x = [*skips, x], self.pool(x)
        y = _relu(y + (x if self.shortcut is None else self.shortcut(x)))
        return join_features(skips, y)


class UpLevel(nnx.Module):
    """A transposed convolution, and one over what it makes and the lowest skip."""

    def __init__(self, features: tuple[int, int], dtype: Any, rngs: nnx.Rngs) -> None:
        _, width = features
        self.grow = ConvTranspose(
            *features,
            (2,) * 3,
            (2,) * 3,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.concat = Concat()
        self.conv = ConvInstanceNormRelu((2 * width, width), 3, dtype, rngs)

    def __call__(self, features: Features) -> Features:
        """Map the last features to `[B, ..., C]`, rows doubled; other skips pass."""
        skips, x = split_features(features)
        # The other way round than `unet.UNetLevel`: nnU-Net puts the skip last.
        x = self.concat(self.grow(x), skips.pop())
        return join_features(skips, self.conv(x))


class ResEncUNet3D(Chain):
    """Residual blocks on the way down, one convolution at each scale on the way up.

    A chain of them, which may be cut between any two as `unet.UNet3D` may.

    Paper: Isensee et al. 2024, arXiv:2404.09556: the plan ResEnc L for cubes of 128
    voxels, six scales of 1, 3, 4, 6, 6 and 6 blocks. Logits of the finest scale alone:
    nnU-Net trains those of four more, by 1,544 parameters. Input:
    `[B, 128, 128, 128, 1]`, or rows that are multiples of 32.
    Parameters: 102,348,226. FLOPs a sample: 1.43 T.
    """

    presets: ClassVar = {
        "full": ResEncPreset(
            image=(128, 128, 128),
            width=32,
            most=320,
            blocks=(1, 3, 4, 6, 6, 6),
            classes=2,
            channels=1,
        ),
        "tiny": ResEncPreset(
            image=(8, 8, 8), width=4, most=8, blocks=(1, 1, 1), classes=4, channels=2
        ),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        how, levels = (dtype, rngs), len(preset.blocks) - 1
        # A `model.width` above the preset's limit is its own limit.
        widths = [
            min(preset.width * 2**i, max(preset.most, preset.width))
            for i in range(levels + 1)
        ]
        wide, blocks = widths[0], dict[str, nnx.Module]()
        blocks["stem"] = ConvInstanceNormRelu((preset.channels, wide), 3, *how)
        for i, (width, count) in enumerate(zip(widths, preset.blocks, strict=True)):
            for j in range(count):
                # The first block of a scale halves the volume that the scale before
                # made.
                stride = 2 if i and not j else 1
                block = ResidualBlock((wide, width), stride, *how)
                blocks[f"down{i}_block{j}"] = block
                wide = width
        for i in reversed(range(levels)):
            blocks[f"up{i}"] = UpLevel((wide, widths[i]), *how)
            wide = widths[i]
        blocks["head"] = Conv(wide, preset.classes, (1,) * 3, dtype=dtype, rngs=rngs)
        super().__init__(blocks)
        self.levels = levels

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map volumes `[B, D, H, W, channels]` to logits `[B, D, H, W, classes]`.

        Raises:
            BadInput: rows that cannot be halved so often.
        """
        check_halvings(type(self).__name__, x.shape[1:-1], self.levels)
        logits: jax.Array = super().__call__(x)
        return logits


def _relu(x: jax.Array) -> jax.Array:
    """Return the leaky ReLU of nnU-Net, of slope 0.01 below zero."""
    return jax.nn.leaky_relu(x, 0.01)
