"""The four convolutional networks of ParaDL's measurements, layer by layer.

Shapes are those that were trained there: 226 x 226 inputs, for which VGG's first dense
layer has 8 x 8 positions to read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final, Literal

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput, did_you_mean

CnnLayerKind = Literal["conv", "dense", "norm", "relu", "add", "pool"]
# Less the optimizer's update, a term of its own: five passes over the weights.
_RUN_PROVENANCE: Final = "measured: ParaDL's run on one GPU, less its update"
_PROFILE_PROVENANCE: Final = (
    "published: ParaDL's profile, forward and backward on one V100"
)


@dataclass(frozen=True, kw_only=True)
class CnnLayer:
    """One layer, for one sample."""

    kind: CnnLayerKind
    """What it does; only `conv` and `dense` multiply."""
    input_grid: tuple[int, ...]
    """Rows and columns (and slices) that it reads."""
    output_grid: tuple[int, ...]
    """Rows and columns (and slices) that it makes."""
    channels: int
    """Features that it reads."""
    features: int
    """Features that it makes."""
    kernel: int = 1
    """Rows of its window, the same in each direction."""
    stride: int = 1
    """Rows between two windows."""

    @property
    def inputs(self) -> int:
        """Elements that it reads."""
        return self.channels * math.prod(self.input_grid)

    @property
    def outputs(self) -> int:
        """Elements that it makes."""
        return self.features * math.prod(self.output_grid)

    @property
    def weights(self) -> int:
        """Elements that are trained; biases are not counted."""
        match self.kind:
            case "conv":
                # A window is square in an image and cubic in a map of three dims.
                taps: int = self.kernel ** len(self.output_grid)
                return self.channels * self.features * taps
            case "dense":
                return self.inputs * self.features
            # Scale and shift of each feature.
            case "norm":
                return 2 * self.features
        return 0

    @property
    def flops(self) -> int:
        """FLOPs of its forward pass; a multiplication and an addition are two."""
        match self.kind:
            case "conv":
                # Each weight is used once for every position of the output.
                return 2 * self.weights * math.prod(self.output_grid)
            case "dense":
                return 2 * self.weights
        return 0

    @property
    def halo(self) -> int:
        """Elements that a neighbour along the first direction needs, each way.

        Half of the window's rows: of the input in the forward pass, and of the
        gradient of the output in the backward pass. Windows that do not overlap, and
        those of a single output, need none.
        """
        if self.kernel <= self.stride:
            return 0
        # A window reaches half of its rows into the neighbour's part.
        rows = self.kernel // 2
        across_in, across = (
            math.prod(self.input_grid[1:]),
            math.prod(self.output_grid[1:]),
        )
        return rows * (self.channels * across_in + self.features * across)


@dataclass
class CnnBuilder:
    """A network that is being written down, layer by layer."""

    grid: tuple[int, ...]
    """Of the features so far."""
    channels: int
    """Features so far."""
    layers: list[CnnLayer] = field(default_factory=list)
    """So far."""

    def conv(
        self, features: int, kernel: int, stride: int = 1, pad: bool = True
    ) -> None:
        """Add a convolution; with padding, windows may begin at every row."""
        # Without padding a window cannot begin in the last rows.
        lost = 0 if pad else kernel - 1
        self._add("conv", features, kernel, stride, self._strided_grid(stride, lost))

    def pool(self, kernel: int, stride: int, ceil_mode: bool = True) -> None:
        """Add a pooling; partial windows at the end count where `ceil_mode`."""
        lost = 0 if ceil_mode else kernel - stride
        whole = tuple((rows - lost) // stride for rows in self.grid)
        grid = self._strided_grid(stride, 0) if ceil_mode else whole
        self._add("pool", self.channels, kernel, stride, grid)

    def each(self, *kinds: Literal["norm", "relu", "add"]) -> None:
        """Add layers that keep the shape."""
        for kind in kinds:
            self._add(kind, self.channels, 1, 1, self.grid)

    def dense(self, features: int) -> None:
        """Add a layer in which each output reads all."""
        self._add("dense", features, 1, 1, (1,) * len(self.grid))

    def _strided_grid(self, stride: int, trimmed_rows: int) -> tuple[int, ...]:
        return tuple(math.ceil((rows - trimmed_rows) / stride) for rows in self.grid)

    def _add(
        self,
        kind: CnnLayerKind,
        features: int,
        kernel: int,
        stride: int,
        grid: tuple[int, ...],
    ) -> None:
        layer = CnnLayer(
            kind=kind,
            input_grid=self.grid,
            output_grid=grid,
            channels=self.channels,
            features=features,
            kernel=kernel,
            stride=stride,
        )
        self.layers.append(layer)
        self.grid, self.channels = grid, features


@dataclass(frozen=True, kw_only=True)
class ParadlWorkload:
    """A network with its measured time on one device, and its epochs."""

    name: str
    """As rows name it."""
    layers: Callable[[], tuple[CnnLayer, ...]]
    """Its layers, in order."""
    seconds_per_sample: SourcedNumber
    """Of forward and backward for one sample on one device."""
    default_batch: float
    """Samples a device where rows do not say."""
    spatial_batch: float
    """Samples of a group that splits positions where rows do not say: the largest that
    ParaDL's runs had."""
    epoch_samples: int
    """Of an epoch."""


@cache
def resnet50() -> tuple[CnnLayer, ...]:
    """ResNet-50 (He et al. 2015), the stride at the 3x3, with its shortcuts."""
    net = CnnBuilder(grid=(226, 226), channels=3)
    net.conv(64, 7, 2)
    net.each("norm", "relu")
    net.pool(3, 2, ceil_mode=False)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        wide = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage else 1
            # The shortcut reads what the block reads, before its convolutions change
            # the grid.
            beside = CnnBuilder(grid=net.grid, channels=net.channels)
            for kernel, step in ((1, 1), (3, stride)):
                net.conv(wide, kernel, step)
                net.each("norm", "relu")
            net.conv(4 * wide, 1)
            net.each("norm")
            if block == 0:
                # The first block of a stage has a convolution in its shortcut.
                beside.conv(4 * wide, 1, stride)
                beside.each("norm")
                net.layers += beside.layers
            net.each("add", "relu")
    net.pool(7, 7)
    net.dense(1000)
    return tuple(net.layers)


@cache
def vgg16() -> tuple[CnnLayer, ...]:
    """VGG-16 (Simonyan and Zisserman 2014, configuration D)."""
    net = CnnBuilder(grid=(226, 226), channels=3)
    for convs, wide in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convs):
            net.conv(wide, 3)
            net.each("relu")
        net.pool(2, 2)
    _classifier(net)
    return tuple(net.layers)


@cache
def alexnet() -> tuple[CnnLayer, ...]:
    """AlexNet (Krizhevsky et al. 2012) without groups."""
    net = CnnBuilder(grid=(227, 227), channels=3)
    net.conv(96, 11, 4, pad=False)
    net.each("relu")
    net.pool(3, 2, ceil_mode=False)
    net.conv(256, 5)
    net.each("relu")
    net.pool(3, 2, ceil_mode=False)
    for wide in (384, 384, 256):
        net.conv(wide, 3)
        net.each("relu")
    net.pool(3, 2, ceil_mode=False)
    _classifier(net)
    return tuple(net.layers)


@cache
def cosmoflow(rows: int) -> tuple[CnnLayer, ...]:
    """CosmoFlow (Mathuriya et al. 2018) on maps of `rows` cubed with four channels.

    Its dense layers are written as one, with as many weights as they have together.
    """
    # Three pairs of convolution and pooling halve the map, then strides do.
    net = CnnBuilder(grid=(rows,) * 3, channels=4)
    for wide, kernel in ((16, 3), (32, 4), (64, 4)):
        net.conv(wide, kernel)
        net.each("relu")
        net.pool(2, 2)
    for wide, kernel in ((128, 3), (256, 2), (256, 2), (256, 2)):
        net.conv(wide, kernel, 2)
        net.each("relu")
    net.pool(net.grid[0], net.grid[0])
    net.dense(1682)
    return tuple(net.layers)


def find_workload(name: str) -> ParadlWorkload:
    """Return a network by name.

    Raises:
        BadInput: it is not one of them.
    """
    # Tables write ResNet-50, resnet50 and ResNet_50.
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in WORKLOADS:
        near = did_you_mean(plain, WORKLOADS)
        raise BadInput(
            f"no layers of {name} are known",
            rule=f"rows are of {', '.join(WORKLOADS)}",
            values=f"model = {name}",
            remedy=f"did you mean {near}?" if near else "leave out these rows",
        )
    return WORKLOADS[plain]


def _classifier(net: CnnBuilder) -> None:
    for wide in (4096, 4096):
        net.dense(wide)
        net.each("relu")
    net.dense(1000)


WORKLOADS: Final[Mapping[str, ParadlWorkload]] = {
    one.name: one
    for one in (
        ParadlWorkload(
            name="resnet50",
            layers=resnet50,
            seconds_per_sample=SourcedNumber((0.18384 - 0.00065) / 64, _RUN_PROVENANCE),
            default_batch=64,
            spatial_batch=256,
            epoch_samples=1_280_000,
        ),
        ParadlWorkload(
            name="vgg16",
            layers=vgg16,
            seconds_per_sample=SourcedNumber((0.26209 - 0.00429) / 32, _RUN_PROVENANCE),
            default_batch=32,
            spatial_batch=32,
            epoch_samples=1_280_000,
        ),
        ParadlWorkload(
            name="alexnet",
            layers=alexnet,
            seconds_per_sample=SourcedNumber(0.000610938, _PROFILE_PROVENANCE),
            default_batch=512,
            spatial_batch=512,
            epoch_samples=1_280_000,
        ),
        *(
            ParadlWorkload(
                name=name,
                layers=partial(cosmoflow, rows),
                seconds_per_sample=SourcedNumber(seconds, _PROFILE_PROVENANCE),
                default_batch=0.25,
                spatial_batch=1,
                epoch_samples=1584,
            )
            for name, rows, seconds in (
                ("cosmoflow", 512, 2.108143184),
                ("cosmoflow512", 512, 2.108143184),
                ("cosmoflow256", 256, 0.263517898),
            )
        ),
    )
}
"""By the names that rows have."""
