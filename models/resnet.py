"""Residual networks (He et al. 2015, arXiv:1512.03385)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import jax
from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair
from jaxdist.layers import Conv, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import (
    ConvNorm,
    ConvNormRelu,
    Head,
    Network,
    make_batch_norm,
)


class Stem(nnx.Module):
    """3x3 convolution, batch norm, ReLU."""

    def __init__(self, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.conv = _conv(preset.channels, preset.width, 1, dtype, rngs)
        self.norm = make_batch_norm(preset.width, preset, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images `[B, H, W, channels]` to features `[B, H, W, width]`."""
        return jax.nn.relu(self.norm(self.conv(x)))


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions beside a shortcut; 1x1 where the shape changes."""

    # The norm between treats each filter by itself, so that a device which has some of
    # the first layer's filters goes on with these alone to the second.
    pairs = (ColumnRowPair(first=("conv1",), last="conv2", inner=("norm1",)),)

    def __init__(
        self,
        features: tuple[int, int],
        stride: int,
        preset: Preset,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        wide_in, wide = features
        self.conv1 = _conv(wide_in, wide, stride, dtype, rngs)
        self.norm1 = make_batch_norm(wide, preset, dtype, rngs)
        self.conv2 = _conv(wide, wide, 1, dtype, rngs)
        self.norm2 = make_batch_norm(wide, preset, dtype, rngs, last=True)
        # The shortcut is the input itself where the shapes agree.
        same = stride == 1 and wide_in == wide
        self.shortcut = None if same else _conv(wide_in, wide, stride, dtype, rngs, 1)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H/stride, W/stride, C]`."""
        y = self.norm2(self.conv2(jax.nn.relu(self.norm1(self.conv1(x)))))
        return jax.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


_RESNET8_PRESET: Final = Preset(
    image=(16, 16), width=16, classes=10, channels=1, residual=True
)


class ResNet8(Network):
    """Eight weighted layers for small images: stem, three basic blocks, head.

    Paper: He et al. 2015, the CIFAR form of section 4.2 with one block a stage.
    Input: `[B, H, W, channels]`, H and W multiples of 4. Parameters at width 16 with
    one input channel and ten classes: 77,562.
    """

    presets: ClassVar = {
        "full": _RESNET8_PRESET,
        "tiny": replace(_RESNET8_PRESET, width=4),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        w, how = preset.width, (preset, dtype, rngs)
        super().__init__(
            {
                "stem": Stem(*how),
                "block1": BasicBlock((w, w), 1, *how),
                "block2": BasicBlock((w, 2 * w), 2, *how),
                "block3": BasicBlock((2 * w, 4 * w), 2, *how),
                "head": Head(4 * w, *how),
            }
        )


@dataclass(frozen=True, kw_only=True)
class ResNetPreset(Preset):
    """Settings of a residual network of bottleneck blocks."""

    residual: bool = True
    """Its blocks are residual."""
    stages: tuple[tuple[int, int, int], ...]
    """Blocks of each stage, filters in units of the width, and first stride."""


class Bottleneck(nnx.Module):
    """1x1, 3x3 and 1x1 convolution to four times the filters, beside a shortcut."""

    pairs = (
        ColumnRowPair(first=("conv.conv",), last="expand.conv", inner=("conv.norm",)),
    )

    def __init__(
        self,
        features: tuple[int, int],
        stride: int,
        preset: Preset,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        wide, w = features
        how = preset, dtype, rngs
        self.reduce = ConvNormRelu((wide, w), 1, *how)
        # The stride is at the 3x3, as in the reference and unlike the paper.
        self.conv = ConvNormRelu((w, w), 3, *how, stride, padding=1)
        self.expand = ConvNorm((w, 4 * w), 1, *how, last=True)
        same = stride == 1 and wide == 4 * w
        self.shortcut = None if same else ConvNorm((wide, 4 * w), 1, *how, stride)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H/stride, W/stride, 4 w]`."""
        y = self.expand(self.conv(self.reduce(x)))
        return jax.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class _BottleneckNet(Network):
    presets: ClassVar[dict[str, ResNetPreset]]

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        how, wide = (preset, dtype, rngs), preset.width
        blocks: dict[str, nnx.Module] = {
            "stem": ConvNormRelu((preset.channels, wide), 7, *how, 2, padding=3),
            "pool": MaxPool(3, 2, padding=1),
        }
        for i, (count, times, first) in enumerate(preset.stages, start=1):
            for j in range(1, count + 1):
                features = wide, times * preset.width
                stride = first if j == 1 else 1
                blocks[f"stage{i}_block{j}"] = Bottleneck(features, stride, *how)
                wide = 4 * features[1]
        blocks["head"] = Head(wide, *how)
        super().__init__(blocks)


def _resnet_presets(*counts: int) -> dict[str, ResNetPreset]:
    """Return the presets of a network with so many blocks a stage."""
    # Filters double where the image shrinks by two, but in the first stage.
    stages = tuple((n, 2**i, 1 if i == 0 else 2) for i, n in enumerate(counts))
    return {
        "full": ResNetPreset(image=(224, 224), width=64, stages=stages),
        # One block that changes the shape and one that does not.
        "tiny": ResNetPreset(image=(32, 32), width=8, classes=10, stages=((2, 1, 2),)),
    }


class ResNet50(_BottleneckNet):
    """Sixteen bottleneck blocks in four stages.

    Paper: He et al. 2015, arXiv:1512.03385, table 1, with the stride at the 3x3
    convolution as in torchvision's `resnet50`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 25,557,032. FLOPs a sample: 8.18 G. Top-1: 76.130 % (torchvision).
    """

    presets: ClassVar = _resnet_presets(3, 4, 6, 3)


class ResNet152(_BottleneckNet):
    """Fifty bottleneck blocks in four stages.

    Paper: He et al. 2015, arXiv:1512.03385, table 1, with the stride at the 3x3
    convolution as in torchvision's `resnet152`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 60,192,808. FLOPs a sample: 23.0 G. Top-1: 78.312 % (torchvision).
    """

    presets: ClassVar = _resnet_presets(3, 8, 36, 3)


def _conv(
    features_in: int,
    features: int,
    stride: int,
    dtype: Any,
    rngs: nnx.Rngs,
    size: int = 3,
) -> Conv:
    return Conv(
        features_in,
        features,
        (size, size),
        stride,
        # The norm behind it, or that beside a shortcut, has a bias that does the same.
        use_bias=False,
        dtype=dtype,
        kernel_init=nnx.initializers.he_normal(),
        rngs=rngs,
    )
