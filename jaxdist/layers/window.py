"""A window: how a kernel passes over one dim, whole or cut into blocks.

A dim of N rows gives M = (N + pads - extent) // stride + 1 outputs. It is cut into n
blocks of b rows, each of whole strides, with n b >= N and n b / stride >= M. Every
block gives b / stride outputs, from its own rows and a halo of

    lo = rows padded before        hi = extent - stride - lo      (negative: crop)

The cut is even where n b = N and n b / stride = M. Elsewhere rows from N and outputs
from M on are padding (`jaxdist.layers.valid_rows`).
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
    def taps(self) -> int:
        """Rows of the kernel, without those that dilation adds."""
        return (self.extent - 1) // self.dilation + 1

    @property
    def outputs(self) -> int:
        """Rows of the output."""
        return (self.rows + sum(self.pads) - self.extent) // self.stride + 1

    @property
    def overhang(self) -> int:
        """Rows that the last window reads behind the last row.

        >>> Window(16, 3, pads=(1, 1)).overhang, Window(16, 3, stride=2).overhang
        (1, 0)
        """
        # Windows behind the last row would read padding as if it were real.
        last = (self.outputs - 1) * self.stride + self.extent - self.pads[0]
        return max(last - self.rows, 0)

    def is_even(self, devices: int) -> bool:
        """Tell whether this whole dim can be cut into so many blocks without padding.

        >>> Window(16, 3, stride=2, pads=(1, 1)).is_even(4), Window(16, 3).is_even(2)
        (True, False)
        """
        # One output for each stride of rows, so that outputs divide as rows do.
        fits = self.rows % (devices * self.stride) == 0
        return devices == 1 or (fits and self.outputs * self.stride == self.rows)

    def cut(self, axis: str, block: int, layer: str = "") -> "Window":
        """Return the window over one block of this whole dim.

        Args:
            axis: axis along which it is split.
            block: rows of a block.
            layer: name for the error.

        Raises:
            BadInput: a block without whole strides.

        >>> Window(16, 3, pads=(1, 1)).cut("spatial_h", 8).pads
        (1, 1)
        >>> Window(16, 1, stride=2).cut("spatial_h", 8).pads
        (0, -1)
        """
        if block % self.stride:
            raise BadInput(
                f"a block of {block} rows does not hold whole strides of {self.stride}",
                rule="every device's block of rows is a multiple of the layer's stride",
                values=f"{layer or 'a layer'} has {self.rows} rows along {axis} in "
                f"blocks of {block}, stride {self.stride}",
                remedy=f"plan.mesh.{axis}=1",
            )
        # The first of b / stride outputs begins lo rows before the block, and the last
        # one reaches extent - stride - lo rows behind it.
        lo = self.pads[0]
        pads = lo, self.extent - self.stride - lo
        return replace(self, rows=block, pads=pads, axis=axis)


Windows = tuple[Window, ...]


def make_windows(
    rows: Sequence[int],
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: Padding,
    dilation: int | Sequence[int] | None = None,
) -> Windows:
    """Return the window over each dim of a whole image between batch and channels.

    Args:
        rows: rows of the image along each of them.
        kernel_size: rows of the kernel, dilation not included.
        strides: rows between two outputs; None is 1.
        padding: SAME, VALID or rows.
        dilation: rows between two taps; None is 1.
    """
    if isinstance(padding, str) and padding not in ("SAME", "VALID"):
        raise ValueError(f"padding is SAME, VALID or rows, not {padding}")
    dims = len(rows)
    each = zip(
        rows,
        *(
            (value or 1,) * dims if value is None or isinstance(value, int) else value
            for value in (kernel_size, strides, dilation)
        ),
    )
    windows = []
    for index, (length, size, stride, apart) in enumerate(each):
        # Rows from the first tap to the last.
        extent = (size - 1) * apart + 1
        pads = (0, 0)
        if padding == "SAME":
            pads = same_padding(length, extent, stride)
        elif not isinstance(padding, str):
            own = padding if isinstance(padding, int) else padding[index]
            pads = (own, own) if isinstance(own, int) else (own[0], own[1])
        windows.append(Window(length, extent, stride, apart, pads))
    return tuple(windows)


def block_windows(
    windows: Windows, split: dict[int, str], block: Sequence[int], layer: str = ""
) -> Windows:
    """Cut the windows of a whole image along its split dims.

    Args:
        windows: over each dim between batch and channels.
        split: {dim: axis} of the split dims.
        block: shape of one device's block, `[B, ..., C]`.
        layer: name for the error.
    """
    return tuple(
        window.cut(split[dim], block[dim], layer) if dim in split else window
        for dim, window in enumerate(windows, start=1)
    )


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the rows SAME padding adds before and behind a dim of `size` rows.

    >>> same_padding(16, 3, 1), same_padding(16, 3, 2), same_padding(30, 7, 2)
    ((1, 1), (0, 1), (2, 3))
    """
    # As TensorFlow and XLA define SAME: the odd row goes behind.
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def transposed_windows(
    rows: Sequence[int],
    kernel_size: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: Padding,
    dilation: int | Sequence[int] | None = None,
) -> Windows:
    """Return the windows of the convolution whose transpose maps `rows` to more rows.

    N rows become N s with SAME, and s (N - 1) + K where that is more with VALID, for
    windows of K rows and stride s: rows of `jax.lax.conv_transpose`. The windows are
    over those rows, and have an output for each row of the input.

    Args:
        rows: rows of the input along each dim between batch and channels.
        kernel_size: rows of the kernel, dilation not included.
        strides: rows of output between two rows of input; None is 1.
        padding: SAME or VALID.
        dilation: rows between two taps; None is 1.

    Raises:
        BadInput: another padding.

    >>> transposed_windows((8,), 3, 2, "SAME")[0].rows
    16
    >>> transposed_windows((8,), 3, 2, "VALID")[0].rows
    17
    """
    if padding not in ("SAME", "VALID"):
        raise BadInput(
            "this padding of a transposed convolution is not known",
            rule="a transposed convolution pads with SAME or VALID",
            values=f"padding = {padding!r}",
            remedy="padding='SAME' makes stride x rows",
        )
    windows = []
    for one in make_windows(rows, kernel_size, strides, "VALID", dilation):
        more = max(one.extent - one.stride, 0) if padding == "VALID" else 0
        total = one.rows * one.stride + more
        pads = (0, 0)
        if padding == "SAME":
            pads = same_padding(total, one.extent, one.stride)
        windows.append(replace(one, rows=total, pads=pads))
    return tuple(windows)


def reads_behind(window: Window) -> bool:
    """Tell whether a transpose's last real outputs reach behind its last input row.

    >>> [reads_behind(transposed_windows((8,), k, 2, "SAME")[0]) for k in (2, 4)]
    [False, True]
    """
    return (window.rows - 1 + window.pads[0]) // window.stride >= window.outputs
