"""A window: how a kernel passes over one dim, whole or cut into blocks.

A dim of N rows gives M = (N + pads - extent) // stride + 1 outputs. It can be cut into
n blocks of b rows where b holds whole strides and M = N / stride: every block then
gives b / stride outputs, from its own rows and a halo of

    lo = rows padded before        hi = extent - stride - lo      (negative: crop)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxdist.core.errors import BadInput

Padding = str | int | Sequence[int | tuple[int, int]]
"""SAME, VALID, or rows of padding: on all sides, of a dim, or (before, behind)."""


@dataclass(frozen=True)
class Window:
    """How a kernel passes over one dim."""

    rows: int
    """Rows of the input, this device's block along a split dim."""
    extent: int
    """Rows the kernel spans, dilation included."""
    stride: int = 1
    """Rows between two outputs."""
    dilation: int = 1
    """Rows between two taps."""
    pads: tuple[int, int] = (0, 0)
    """Rows of padding before and behind; along a split dim the halo instead."""
    axis: str | None = None
    """Manual axis along which the dim is split."""

    @property
    def outputs(self) -> int:
        """Rows of the output."""
        return (self.rows + sum(self.pads) - self.extent) // self.stride + 1

    def cuts(self, devices: int) -> bool:
        """Tell whether this whole dim can be cut into so many blocks.

        >>> Window(16, 3, stride=2, pads=(1, 1)).cuts(4), Window(16, 3).cuts(2)
        (True, False)
        """
        fits = self.rows % (devices * self.stride) == 0
        return devices == 1 or (fits and self.outputs * self.stride == self.rows)

    def cut(self, axis: str, devices: int, layer: str = "") -> "Window":
        """Return the window over one block of this whole dim.

        Args:
            axis: axis along which it is split.
            devices: blocks.
            layer: name for the error.

        Raises:
            BadInput: blocks without whole strides, or outputs that do not divide.

        >>> Window(16, 3, pads=(1, 1)).cut("spatial_h", 2).pads
        (1, 1)
        >>> Window(16, 1, stride=2).cut("spatial_h", 2).pads
        (0, -1)
        """
        block = self.rows // devices
        if block % self.stride or self.rows % devices:
            raise BadInput(
                f"a block of {block} rows does not hold whole strides of {self.stride}",
                rule="every device's block of rows is a multiple of the layer's stride",
                values=f"{layer or 'a layer'} has {self.rows} rows over {devices} "
                f"devices, stride {self.stride}",
                remedy=f"fewer devices along {axis}, or {2 * self.rows} rows",
            )
        if not self.cuts(devices):
            raise BadInput(
                f"{layer or 'a layer'} cannot be split along {axis}",
                rule="a layer of split images gives one row for each stride of rows",
                values=f"{self.rows} rows give {self.outputs} by a window of "
                f"{self.extent}, stride {self.stride}, padding {self.pads}",
                remedy=f"padding='SAME', or plan.mesh.{axis}=1",
            )
        lo = self.pads[0]
        pads = lo, self.extent - self.stride - lo
        return replace(self, rows=block, pads=pads, axis=axis)


Windows = tuple[Window, ...]


def windows_over(
    shape: Sequence[int],
    taps: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: Padding,
    dilation: int | Sequence[int] | None = None,
) -> Windows:
    """Return the window over each dim of a whole image between batch and channels.

    Args:
        shape: `[B, ..., C]`.
        taps: rows of the kernel, dilation not included.
        strides: rows between two outputs; None is 1.
        padding: SAME, VALID or rows.
        dilation: rows between two taps; None is 1.
    """
    dims = len(shape) - 2
    each = zip(
        shape[1:-1],
        _each(taps, dims),
        _each(strides, dims),
        _each(dilation, dims),
    )
    windows = []
    for index, (rows, size, stride, apart) in enumerate(each):
        extent = (size - 1) * apart + 1
        pads = _pads(padding, index, rows, extent, stride)
        windows.append(Window(rows, extent, stride, apart, pads))
    return tuple(windows)


def cut(
    windows: Windows, split: dict[int, str], sizes: dict[str, int], layer: str = ""
) -> Windows:
    """Cut the windows of a whole image along its split dims.

    Args:
        windows: over each dim between batch and channels.
        split: {dim: axis} of the split dims.
        sizes: {axis: devices along it}.
        layer: name for the error.
    """
    return tuple(
        window.cut(split[dim], sizes[split[dim]], layer) if dim in split else window
        for dim, window in enumerate(windows, start=1)
    )


def whole_shape(
    block: Sequence[int], split: dict[int, str], sizes: dict[str, int]
) -> tuple[int, ...]:
    """Return the shape of the image that a block is part of, along split dims."""
    return tuple(
        rows * sizes[split[dim]] if dim in split else rows
        for dim, rows in enumerate(block)
    )


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the rows SAME padding adds before and behind a dim of `size` rows.

    >>> same_padding(16, 3, 1), same_padding(16, 3, 2), same_padding(30, 7, 2)
    ((1, 1), (0, 1), (2, 3))
    """
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _pads(
    padding: Padding, index: int, rows: int, extent: int, stride: int
) -> tuple[int, int]:
    if padding == "SAME":
        return same_padding(rows, extent, stride)
    if padding == "VALID":
        return 0, 0
    if isinstance(padding, str):
        raise ValueError(f"padding is SAME, VALID or rows, not {padding}")
    one = padding if isinstance(padding, int) else padding[index]
    return (one, one) if isinstance(one, int) else (one[0], one[1])


def _each(value: int | Sequence[int] | None, dims: int) -> tuple[int, ...]:
    """Spell out a per-dim setting that may be one number for all."""
    if value is None or isinstance(value, int):
        return (value or 1,) * dims
    return tuple(value)
