"""Inception-v3: factorised modules (Szegedy et al. 2015, arXiv:1512.00567)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import jax
from flax import nnx

from jaxdist.layers import AvgPool, GridMean, Linear, MaxPool
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

Made = tuple[nnx.Module, int]


@dataclass(frozen=True, kw_only=True)
class InceptionPreset(Preset):
    """Settings of an Inception-v3."""

    dropout: float = 0.5
    """Share of features dropped before the head."""
    modules: tuple[tuple[str, str, int], ...]
    """Name, kind (a to e) and the filters that kinds a and c leave open."""


class InceptionV3(Network):
    """Eleven inception modules of five kinds.

    Paper: Szegedy et al. 2015, arXiv:1512.00567, with the padding and widths of
    torchvision's `inception_v3`. Its auxiliary head averages to 5 x 5 over windows
    that cover all positions, where the reference moves a 5x5 window by 3.
    Input: `[B, 299, 299, 3]`, or any size of at least 75.
    Parameters: 23,834,568, and 3,326,696 in the auxiliary head of `model.aux`.
    FLOPs a sample: 11.4 G. Top-1: 77.294 % (torchvision).
    """

    presets: ClassVar = {
        "full": InceptionPreset(
            image=(299, 299),
            width=32,
            modules=(
                ("5b", "a", 32),
                ("5c", "a", 64),
                ("5d", "a", 64),
                ("6a", "b", 0),
                ("6b", "c", 128),
                ("6c", "c", 160),
                ("6d", "c", 160),
                ("6e", "c", 192),
                ("7a", "d", 0),
                ("7b", "e", 0),
                ("7c", "e", 0),
            ),
            aux_after=("mixed6e",),
        ),
        # Its modules are deeper than eight layers: each kind once is the least.
        "tiny": InceptionPreset(
            image=(75, 75),
            width=4,
            classes=10,
            modules=(
                ("5b", "a", 32),
                ("6a", "b", 0),
                ("6b", "c", 128),
                ("7a", "d", 0),
                ("7b", "e", 0),
            ),
            aux_after=("mixed6b",),
        ),
    }

    def __init__(
        self, config: ModelConfig, *, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        preset = resolve_preset(config, self.presets)
        make = _Maker(preset, dtype, rngs)
        w80, w192 = preset.scaled(80, of=32), preset.scaled(192, of=32)
        w = preset.width
        blocks: dict[str, nnx.Module] = {
            # Of 299 rows 149, 147, 147, 73, 73, 71 and 35 are left: only conv3 is
            # padded.
            "conv1": make.unit(preset.channels, w, 3, stride=2),
            "conv2": make.unit(w, w, 3),
            "conv3": make.unit(w, 2 * w, 3, padding=1),
            "pool1": MaxPool(3, 2),
            "conv4": make.unit(2 * w, w80, 1),
            "conv5": make.unit(w80, w192, 3),
            "pool2": MaxPool(3, 2),
        }
        wide, heads = w192, dict[str, nnx.Module]()
        for name, kind, filters in preset.modules:
            block = f"mixed{name}"
            blocks[block], wide = make.module(kind, wide, filters)
            if preset.aux and block in preset.aux_after:
                heads[block] = Auxiliary(wide, preset, dtype, rngs)
        blocks["head"] = Head(wide, preset, dtype, rngs)
        super().__init__(blocks, heads)


class _Maker:
    """Makes the modules of one network; filters are those of the full width."""

    def __init__(self, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        self.preset, self.dtype, self.rngs = preset, dtype, rngs

    def unit(
        self,
        wide: int,
        features: int,
        size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> nnx.Module:
        return ConvNormRelu(
            (wide, features),
            size,
            self.preset,
            self.dtype,
            self.rngs,
            stride,
            padding,
            BATCH_NORM_EPSILON,
        )

    def path(self, wide: int, *steps: tuple[Any, ...]) -> nnx.Module:
        """Return a chain of units (filters, size[, stride]); stride 1 keeps rows."""
        blocks: dict[str, nnx.Module] = {}
        for i, (filters, size, *stride) in enumerate(steps, start=1):
            # A stride shrinks the image without padding; stride 1 keeps its rows.
            taps = (size, size) if isinstance(size, int) else size
            same = (taps[0] // 2, taps[1] // 2)
            features = self.preset.scaled(filters, of=32)
            how = {"stride": stride[0]} if stride else {"padding": same}
            blocks[f"conv{i}"] = self.unit(wide, features, size, **how)
            wide = features
        return Chain(blocks)

    def pooled(self, wide: int, filters: int) -> nnx.Module:
        """Return 3x3 averages, zeros around them included, and a 1x1 unit."""
        features = self.preset.scaled(filters, of=32)
        return Chain(
            {"pool": AvgPool(3, 1, padding=1), "conv": self.unit(wide, features, 1)}
        )

    def split(self, wide: int, *steps: tuple[Any, ...]) -> nnx.Module:
        """Return a path that ends in a row beside a column of 384 filters each."""
        last = self.preset.scaled(steps[-1][0], of=32)
        features = self.preset.scaled(384, of=32)
        ends = Fork(
            row=self.unit(last, features, (1, 3), padding=(0, 1)),
            column=self.unit(last, features, (3, 1), padding=(1, 0)),
        )
        return Chain({"path": self.path(wide, *steps), "ends": ends})

    def module(self, kind: str, wide: int, filters: int) -> Made:
        """Return a module of a kind, and the channels of its output."""
        # Branches that only pool keep the channels of their input.
        branches, channels, keeps = getattr(self, f"_{kind}")(wide, filters)
        out = sum(self.preset.scaled(n, of=32) for n in channels)
        return Fork(**branches), out + (wide if keeps else 0)

    # Kinds a to e, for images of 35, 35, 17, 17 and 8 rows: figures 5, 10, 6, 10 and 7
    # of the paper. Branches are joined in the order of the reference's channels.
    def _a(self, wide: int, filters: int) -> Any:
        branches = {
            "one": self.path(wide, (64, 1)),
            "five": self.path(wide, (48, 1), (64, 5)),
            "double": self.path(wide, (64, 1), (96, 3), (96, 3)),
            "pooled": self.pooled(wide, filters),
        }
        return branches, (64, 64, 96, filters), False

    def _b(self, wide: int, filters: int) -> Any:
        branches = {
            "three": self.path(wide, (384, 3, 2)),
            "double": self.path(wide, (64, 1), (96, 3), (96, 3, 2)),
            "pool": MaxPool(3, 2),
        }
        return branches, (384, 96), True

    def _c(self, wide: int, filters: int) -> Any:
        row, column = (filters, (1, 7)), (filters, (7, 1))
        branches = {
            "one": self.path(wide, (192, 1)),
            "seven": self.path(wide, (filters, 1), row, (192, (7, 1))),
            "double": self.path(wide, (filters, 1), column, row, column, (192, (1, 7))),
            "pooled": self.pooled(wide, 192),
        }
        return branches, (192,) * 4, False

    def _d(self, wide: int, filters: int) -> Any:
        row, column = (192, (1, 7)), (192, (7, 1))
        branches = {
            "three": self.path(wide, (192, 1), (320, 3, 2)),
            "seven": self.path(wide, (192, 1), row, column, (192, 3, 2)),
            "pool": MaxPool(3, 2),
        }
        return branches, (320, 192), True

    def _e(self, wide: int, filters: int) -> Any:
        branches = {
            "one": self.path(wide, (320, 1)),
            "three": self.split(wide, (384, 1)),
            "double": self.split(wide, (448, 1), (384, 3)),
            "pooled": self.pooled(wide, 192),
        }
        return branches, (320, 384, 384, 384, 384, 192), False


class Auxiliary(nnx.Module):
    """The auxiliary head: mean to 5 x 5, a 1x1 and a 5x5 convolution, a dense layer."""

    def __init__(self, wide: int, preset: Preset, dtype: Any, rngs: nnx.Rngs) -> None:
        few, many = preset.scaled(128, of=32), preset.scaled(768, of=32)
        self.mean = GridMean((5, 5))
        # Convolutions of positions that every device holds whole are dense layers.
        self.conv0 = Linear(wide, few, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm0 = make_batch_norm(few, preset, dtype, rngs, BATCH_NORM_EPSILON)
        self.conv1 = Linear(25 * few, many, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm1 = make_batch_norm(many, preset, dtype, rngs, BATCH_NORM_EPSILON)
        self.dense = Linear(many, preset.classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map features `[B, H, W, C]` to logits `[B, classes]`."""
        y = self.mean(x)
        # The 5 x 5 positions as a dim of their own, each through the same dense layer.
        y = y.reshape(y.shape[0], 25, y.shape[-1])
        y = jax.nn.relu(self.norm0(self.conv0(y)))
        y = self.conv1(y.reshape(y.shape[0], 25 * y.shape[-1]))
        return self.dense(jax.nn.relu(self.norm1(y)))
