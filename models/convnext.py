"""ConvNeXt (Liu et al. 2022, arXiv:2201.03545)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair
from jaxdist.layers import Conv, Dropout, GlobalMean, LayerNorm, Linear
from jaxdist.layers.tensor_role import broadcast_param
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import Network

_EPSILON: Final = 1e-6
"""Added to the variances of the norms."""
_LAYER_SCALE: Final = 1e-6
"""What each channel of a block's branch begins with (section A.1)."""

_INIT: Final = nnx.initializers.truncated_normal(0.02)
"""First kernels, of a standard deviation of 0.02."""


@dataclass(frozen=True, kw_only=True)
class ConvNeXtPreset(Preset):
    """Settings of a ConvNeXt."""

    depths: tuple[int, ...]
    """Blocks of each stage; channels double from one to the next."""


class ConvNeXtBlock(nnx.Module):
    """A depthwise 7x7, and two 1x1 convolutions with four times the channels between.

        y = x + gamma * reduce(gelu(expand(norm(depthwise(x)))))

    Figure 4. The norm is over the channels of each position.
    """

    # What lies between treats each channel by itself, so a device that has some of the
    # wide channels goes on with these alone.
    pairs = (ColumnRowPair(first=("expand",), last="reduce"),)

    def __init__(self, wide: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.depthwise = Conv(
            wide,
            wide,
            (7, 7),
            padding=[(3, 3), (3, 3)],
            feature_group_count=wide,
            dtype=dtype,
            kernel_init=_INIT,
            rngs=rngs,
        )
        self.norm = LayerNorm(wide, epsilon=_EPSILON, dtype=dtype, rngs=rngs)
        self.expand = _conv(wide, 4 * wide, 1, dtype, rngs)
        self.reduce = _conv(4 * wide, wide, 1, dtype, rngs)
        self.gamma = nnx.Param(jnp.full(wide, _LAYER_SCALE))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C]` to the same shape."""
        y = self.expand(self.norm(self.depthwise(x)))
        # The backward pass computes GELU again: an array four times as large as x.
        y = self.reduce(jax.checkpoint(_gelu)(y))
        return x + y * broadcast_param(self.gamma[...], y)


class NormConv(nnx.Module):
    """A norm of channels, and a convolution whose windows do not overlap."""

    def __init__(
        self, features: tuple[int, int], size: int, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.norm = LayerNorm(features[0], epsilon=_EPSILON, dtype=dtype, rngs=rngs)
        self.conv = _conv(*features, size, dtype, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H/size, W/size, C]`."""
        return self.conv(self.norm(x))


class ConvNorm4x4(nnx.Module):
    """The stem: squares of 4 x 4 pixels become features, and their norm."""

    def __init__(self, features: tuple[int, int], dtype: Any, rngs: nnx.Rngs) -> None:
        self.conv = _conv(*features, 4, dtype, rngs)
        self.norm = LayerNorm(features[1], epsilon=_EPSILON, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images `[B, H, W, channels]` to `[B, H/4, W/4, width]`."""
        return self.norm(self.conv(x))


class NormHead(nnx.Module):
    """Mean over positions, norm, dropout, one dense layer."""

    def __init__(self, wide: int, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.mean = GlobalMean()
        self.norm = LayerNorm(wide, epsilon=_EPSILON, dtype=dtype, rngs=rngs)
        self.dropout = Dropout(preset.dropout)
        self.dense = Linear(
            wide, preset.classes, dtype=dtype, kernel_init=_INIT, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map features `[B, H, W, C]` to logits `[B, classes]`."""
        return self.dense(self.dropout(self.norm(self.mean(x))))


class _ConvNeXt(Network):
    presets: ClassVar[dict[str, ConvNeXtPreset]]

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        wide, how = preset.width, (dtype, rngs)
        blocks: dict[str, nnx.Module] = {
            "stem": ConvNorm4x4((preset.channels, wide), *how)
        }
        for i, depth in enumerate(preset.depths, start=1):
            if i > 1:
                # With a norm, as wherever rows change: training diverges without
                # (section 2.6).
                blocks[f"down{i}"] = NormConv((wide, 2 * wide), 2, *how)
                wide *= 2
            for j in range(1, depth + 1):
                blocks[f"stage{i}_block{j}"] = ConvNeXtBlock(wide, *how)
        blocks["head"] = NormHead(wide, preset, *how)
        super().__init__(blocks)


def _convnext_presets(width: int, *depths: int) -> dict[str, ConvNeXtPreset]:
    return {
        "full": ConvNeXtPreset(image=(224, 224), width=width, depths=depths),
        # One block of each of two sizes, and what makes the one from the other.
        "tiny": ConvNeXtPreset(image=(32, 32), width=8, classes=10, depths=(1, 1)),
    }


class ConvNeXtT(_ConvNeXt):
    """Eighteen blocks in four stages of 96 to 768 channels.

    Paper: Liu et al. 2022, arXiv:2201.03545, section 3, without stochastic depth, as in
    torchvision's `convnext_tiny`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 28,589,128. FLOPs a sample: 8.91 G. Top-1: 82.1 % (the paper).
    """

    presets: ClassVar = _convnext_presets(96, 3, 3, 9, 3)


class ConvNeXtS(_ConvNeXt):
    """Thirty-six blocks in four stages of 96 to 768 channels.

    Paper: Liu et al. 2022, arXiv:2201.03545, section 3, without stochastic depth, as in
    torchvision's `convnext_small`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 50,223,688. FLOPs a sample: 17.4 G. Top-1: 83.1 % (the paper).
    """

    presets: ClassVar = _convnext_presets(96, 3, 3, 27, 3)


class ConvNeXtB(_ConvNeXt):
    """Thirty-six blocks in four stages of 128 to 1,024 channels.

    Paper: Liu et al. 2022, arXiv:2201.03545, section 3, without stochastic depth, as in
    torchvision's `convnext_base`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 88,591,464. FLOPs a sample: 30.7 G. Top-1: 83.8 % (the paper).
    """

    presets: ClassVar = _convnext_presets(128, 3, 3, 27, 3)


class ConvNeXtL(_ConvNeXt):
    """Thirty-six blocks in four stages of 192 to 1,536 channels.

    Paper: Liu et al. 2022, arXiv:2201.03545, section 3, without stochastic depth, as in
    torchvision's `convnext_large`. Input: `[B, 224, 224, 3]`, or any size.
    Parameters: 197,767,336. FLOPs a sample: 68.7 G. Top-1: 84.3 % (the paper).
    """

    presets: ClassVar = _convnext_presets(192, 3, 3, 27, 3)


def _conv(
    features_in: int, features: int, size: int, dtype: Any, rngs: nnx.Rngs
) -> Conv:
    """Return a convolution whose windows lie side by side."""
    return Conv(
        features_in,
        features,
        (size, size),
        size,
        padding=[(0, 0), (0, 0)],
        dtype=dtype,
        kernel_init=_INIT,
        rngs=rngs,
    )


def _gelu(x: jax.Array) -> jax.Array:
    """Return x Phi(x), with the error function itself, as the reference has it."""
    return jax.nn.gelu(x, approximate=False)
