"""VGG: stages of 3x3 convolutions (Simonyan and Zisserman 2014, arXiv:1409.1556)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxdist.core.block_protocol import SingleLayerBlock
from jaxdist.layers import Conv, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import Dense, DenseRelu, Flatten, Network


@dataclass(frozen=True, kw_only=True)
class VGGPreset(Preset):
    """Settings of a VGG."""

    dropout: float = 0.5
    """Share of features dropped before the last two dense layers."""
    stages: tuple[tuple[int, int], ...]
    """Convolutions of each stage, and their filters in units of the width."""
    grid: int
    """Rows and columns that the dense layers read."""

    @property
    def dense(self) -> int:
        """Features of the first two dense layers."""
        # 4,096 at the paper's width of 64.
        return 64 * self.width


class ConvRelu(nnx.Module):
    """A 3x3 convolution and ReLU."""

    unit = SingleLayerBlock(weights="conv")

    def __init__(self, features: tuple[int, int], dtype: Any, rngs: nnx.Rngs) -> None:
        self.conv = Conv(
            *features,
            (3, 3),
            padding=1,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H, W, C]`."""
        return jax.nn.relu(self.conv(x))


class VGG16(Network):
    """Thirteen convolutions in five stages, three dense layers.

    Paper: Simonyan and Zisserman 2014, arXiv:1409.1556, configuration D.
    Input: `[B, 224, 224, 3]`; other sizes are averaged to the grid of 7 x 7.
    Parameters: 138,357,544. FLOPs a sample: 30.9 G. Top-1: 71.592 % (torchvision).
    """

    presets: ClassVar = {
        "full": VGGPreset(
            image=(224, 224),
            width=64,
            stages=((2, 1), (2, 2), (3, 4), (3, 8), (3, 8)),
            grid=7,
        ),
        "tiny": VGGPreset(
            image=(32, 32), width=8, classes=10, stages=((1, 1), (2, 2)), grid=2
        ),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        blocks = vgg_trunk(preset, dtype, rngs)
        head = Dense((preset.dense, preset.classes), preset.dropout, dtype, rngs)
        super().__init__({**blocks, "head": head})


def vgg_trunk(preset: VGGPreset, dtype: Any, rngs: nnx.Rngs) -> dict[str, nnx.Module]:
    """Return the blocks before the head: images to features `[B, preset.dense]`."""
    wide, blocks = preset.channels, dict[str, nnx.Module]()
    for i, (count, times) in enumerate(preset.stages, start=1):
        for j in range(1, count + 1):
            # Filters of each stage are a multiple of the first.
            features = wide, times * preset.width
            blocks[f"conv{i}_{j}"] = ConvRelu(features, dtype, rngs)
            wide = features[1]
        blocks[f"pool{i}"] = MaxPool(2, 2)
    flat, dense = preset.grid**2 * wide, preset.dense
    blocks["flatten"] = Flatten((preset.grid, preset.grid))
    # No dropout before the first: the paper has it behind the first two.
    blocks["dense1"] = DenseRelu((flat, dense), 0.0, dtype, rngs)
    blocks["dense2"] = DenseRelu((dense, dense), preset.dropout, dtype, rngs)
    return blocks
