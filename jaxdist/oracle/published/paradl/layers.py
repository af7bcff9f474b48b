"""Layers of a convolutional network as numbers: what each reads, keeps and computes."""

import math
from dataclasses import dataclass, field
from typing import Literal

CnnLayerKind = Literal["conv", "dense", "norm", "relu", "add", "pool"]


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
                taps: int = self.kernel ** len(self.output_grid)
                return self.channels * self.features * taps
            case "dense":
                return self.inputs * self.features
            case "norm":
                return 2 * self.features
        return 0

    @property
    def flops(self) -> int:
        """FLOPs of its forward pass; a multiplication and an addition are two."""
        match self.kind:
            case "conv":
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
