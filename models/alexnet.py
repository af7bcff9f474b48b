"""AlexNet, with one tower and in its original form of two groups.

Papers: Krizhevsky, Sutskever, Hinton 2012, "ImageNet Classification with Deep
Convolutional Neural Networks" (two groups); Krizhevsky 2014, arXiv:1404.5997 (one).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
from flax import nnx

from jaxdist.core.block_protocol import SingleLayerBlock
from jaxdist.core.errors import BadInput
from jaxdist.layers import Conv, LocalResponseNorm, MaxPool
from jaxdist.models.config import ModelConfig, Preset, resolve_preset
from jaxdist.models.conv_blocks import Dense, DenseRelu, Flatten, Network


@dataclass(frozen=True, kw_only=True)
class AlexPreset(Preset):
    """Settings of an AlexNet."""

    dropout: float = 0.5
    """Share of features dropped before the first two dense layers."""
    grid: int = 6
    """Rows and columns that the dense layers read."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One convolution of the network."""

    features: int
    """Filters."""
    size: int
    """Rows and columns of a filter."""
    stride: int = 1
    """Rows between two outputs."""
    padding: int = 0
    """Rows of zeros on each side."""
    groups: int = 1
    """Parts of the channels that do not see each other."""
    response: bool = False
    """Whether a local response normalisation follows."""
    pool: bool = False
    """Whether a 3x3 maximum of stride 2 follows."""


class ConvStage(nnx.Module):
    """Convolution and ReLU, then response normalisation and pooling where asked."""

    def __init__(
        self, features_in: int, stage: Stage, features: int, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        self.conv = Conv(
            features_in,
            features,
            (stage.size, stage.size),
            stage.stride,
            padding=stage.padding,
            feature_group_count=stage.groups,
            dtype=dtype,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        )
        self.response = LocalResponseNorm() if stage.response else None
        # Response normalisation mixes features.
        unit = SingleLayerBlock(weights="conv", behind=("pool",) if stage.pool else ())
        self.unit = None if stage.response else unit
        self.pool = MaxPool(3, 2) if stage.pool else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C_in]` to `[B, H', W', C]`."""
        # ReLU before the norm, as in section 3.3 of the paper.
        y = jax.nn.relu(self.conv(x))
        y = y if self.response is None else self.response(y)
        return y if self.pool is None else self.pool(y)


class _AlexNet(Network):
    presets: ClassVar[dict[str, AlexPreset]]
    stages: ClassVar[tuple[Stage, ...]]

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        first = self.stages[0].features
        self._check_width(preset)
        wide, blocks = preset.channels, dict[str, nnx.Module]()
        for i, stage in enumerate(self.stages, start=1):
            # Widths keep their proportion to the first convolution, in small presets
            # too.
            features = preset.scaled(stage.features, of=first)
            blocks[f"conv{i}"] = ConvStage(wide, stage, features, dtype, rngs)
            wide = features
        dense, rate = preset.scaled(4096, of=first), preset.dropout
        flat = preset.grid**2 * wide
        # Averaged to a fixed grid, so that images of any size fit the dense layers.
        blocks["flatten"] = Flatten((preset.grid, preset.grid))
        blocks["dense6"] = DenseRelu((flat, dense), rate, dtype, rngs)
        blocks["dense7"] = DenseRelu((dense, dense), rate, dtype, rngs)
        blocks["head"] = Dense((dense, preset.classes), 0.0, dtype, rngs)
        super().__init__(blocks)

    def _check_width(self, preset: AlexPreset) -> None:
        """Refuse a width whose channels or filters do not divide into their groups."""
        first = self.stages[0].features

        def fits(width: int) -> bool:
            sized, channels = replace(preset, width=width), preset.channels
            for stage in self.stages:
                features = sized.scaled(stage.features, of=first)
                if channels % stage.groups or features % stage.groups:
                    return False
                channels = features
            return True

        if fits(preset.width):
            return
        # The published width fits, so some width of these does.
        fitting = filter(fits, range(1, preset.width + first + 1))
        near = min(fitting, key=lambda width: abs(width - preset.width))
        groups = max(stage.groups for stage in self.stages)
        raise BadInput(
            f"the channels of {type(self).__name__} do not divide into its groups",
            rule=f"channels and filters of its convolutions in {groups} groups, in "
            f"proportion to model.width, are multiples of {groups}",
            values=f"model.width = {preset.width}",
            remedy=f"model.width={near}",
        )


class AlexNet(_AlexNet):
    """AlexNet with one tower and without response normalisation.

    Paper: Krizhevsky 2014, arXiv:1404.5997; the widths and the padding are those of
    torchvision's `alexnet`.
    Input: `[B, 224, 224, 3]`; other sizes are averaged to the grid of 6 x 6.
    Parameters: 61,100,840. FLOPs a sample: 1.43 G. Top-1: 56.522 % (torchvision).
    """

    presets: ClassVar = {
        "full": AlexPreset(image=(224, 224), width=64),
        "tiny": AlexPreset(image=(64, 64), width=8, classes=10, grid=1),
    }
    stages = (
        Stage(features=64, size=11, stride=4, padding=2, pool=True),
        Stage(features=192, size=5, padding=2, pool=True),
        Stage(features=384, size=3, padding=1),
        Stage(features=256, size=3, padding=1),
        Stage(features=256, size=3, padding=1, pool=True),
    )


class AlexNetTwoGroup(_AlexNet):
    """The AlexNet of 2012: second, fourth and fifth convolution in two groups.

    Paper: Krizhevsky, Sutskever, Hinton 2012, sections 3.3 to 3.5. Its two devices
    exchanged features at the third convolution and the dense layers alone.
    Input: `[B, 227, 227, 3]`: the paper writes 224, which its 55 x 55 outputs
    contradict. Parameters: 60,965,224, by the paper's own layer sizes.
    FLOPs a sample: 1.45 G. Top-1: 59.3 % for one network (section 6).
    """

    presets: ClassVar = {
        "full": AlexPreset(image=(227, 227), width=96),
        "tiny": AlexPreset(image=(67, 67), width=12, classes=10, grid=1),
    }
    stages = (
        Stage(features=96, size=11, stride=4, response=True, pool=True),
        Stage(features=256, size=5, padding=2, groups=2, response=True, pool=True),
        Stage(features=384, size=3, padding=1),
        Stage(features=384, size=3, padding=1, groups=2),
        Stage(features=256, size=3, padding=1, groups=2, pool=True),
    )
