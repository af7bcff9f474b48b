"""CosmoFlow: cosmological parameters from a 3-D map of matter.

Papers: Mathuriya et al. 2018, arXiv:1808.04728; Farrell et al. 2021, "MLPerf HPC",
arXiv:2110.11466.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxdist.core.block_protocol import SingleLayerBlock
from jaxdist.layers import Conv, Dropout, Linear, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import Flatten, Network


@dataclass(frozen=True, kw_only=True)
class CosmoPreset(Preset):
    """Settings of a CosmoFlow."""

    classes: int = 4
    """Parameters that it estimates."""
    channels: int = 4
    """Red shifts of the map."""
    dropout: float = 0.5
    """Share of features dropped behind the first two dense layers."""
    stages: int
    """Convolutions, each with twice the filters of the one before."""
    dense: tuple[int, int] = (128, 64)
    """Features of the first two dense layers."""


class Stage(nnx.Module):
    """2x2x2 convolution, leaky ReLU, 2x2x2 maximum."""

    unit = SingleLayerBlock(weights="conv", behind=("pool",))

    def __init__(self, features: tuple[int, int], dtype: Any, rngs: nnx.Rngs) -> None:
        self.conv = Conv(
            *features,
            (2, 2, 2),
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.pool = MaxPool(2, 2)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, D, H, W, C_in]` to `[B, D/2, H/2, W/2, C]`."""
        return self.pool(_leaky_relu(self.conv(x)))


class Hidden(nnx.Module):
    """A dense layer, leaky ReLU, dropout."""

    unit = SingleLayerBlock(weights="dense", behind=("dropout",))

    def __init__(
        self, features: tuple[int, int], dropout: float, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.dense = Linear(*features, dtype=dtype, rngs=rngs)
        self.dropout = Dropout(dropout)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, C_in]` to `[B, C]`."""
        return self.dropout(_leaky_relu(self.dense(x)))


class Estimate(nnx.Module):
    """A dense layer with outputs between -1.2 and 1.2."""

    unit = SingleLayerBlock(weights="dense")

    def __init__(self, features: tuple[int, int], dtype: Any, rngs: nnx.Rngs) -> None:
        self.dense = Linear(*features, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, C_in]` to parameters `[B, classes]`."""
        # Targets are scaled to -1 .. 1; the margin keeps tanh out of saturation.
        return 1.2 * jax.nn.tanh(self.dense(x))


class CosmoFlow(Network):
    """Five 3-D convolutions, three dense layers.

    Paper: Mathuriya et al. 2018, in the form of the MLPerf HPC benchmark (reference
    `mlcommons/hpc`, cosmoflow/models/cosmoflow.py with configs/cosmo.yaml: 32 filters
    of 2x2x2 that double, SAME padding, maxima, tanh scaled by 1.2).
    Input: `[B, 128, 128, 128, 4]`; other sizes are averaged to the grid of 4 x 4 x 4.
    Parameters: 5,597,604. FLOPs a sample: 20.4 G.
    Quality: mean absolute error 0.124 is the benchmark's target; it has no classes.
    """

    presets: ClassVar = {
        "full": CosmoPreset(image=(128, 128, 128), width=32, stages=5),
        "tiny": CosmoPreset(image=(8, 8, 8), width=4, stages=2, dense=(16, 8)),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        wide, blocks = preset.channels, dict[str, nnx.Module]()
        for i in range(preset.stages):
            features = wide, preset.width * 2**i
            blocks[f"conv{i + 1}"] = Stage(features, dtype, rngs)
            wide = features[1]
        # What is left after the stages of stride 2, for the image it was made for.
        grid = tuple(rows // 2**preset.stages for rows in preset.image)
        first, second = preset.dense
        flat = wide * grid[0] * grid[1] * grid[2]
        rate = preset.dropout
        blocks["flatten"] = Flatten(grid)
        # Dropout is behind the activation, unlike in `conv_blocks.Dense`: the reference
        # has it there.
        blocks["dense1"] = Hidden((flat, first), rate, dtype, rngs)
        blocks["dense2"] = Hidden((first, second), rate, dtype, rngs)
        blocks["head"] = Estimate((second, preset.classes), dtype, rngs)
        super().__init__(blocks)


def _leaky_relu(x: jax.Array) -> jax.Array:
    """Leaky ReLU with the slope of the reference."""
    # The default slope of Keras, as in the reference; that of JAX is 0.01.
    return jax.nn.leaky_relu(x, 0.3)
