"""Halo exchange: rows of its neighbours that a window operation needs, and gradients.

How many rows, `lo` before the block and `hi` behind it, is the matter of
`jaxdist.layers.window`. Rows beyond the global edges are `fill`.

A convolution of split images, whose gradients fetch only the halos they need.

Forward, along a split dim (b rows a block, kernel extent K, stride s, halos lo and hi
of `jaxdist.layers.window`):

    y[o] = sum_k w[k] x[o s + k - lo]

The gradient to the input needs outputs of the neighbours too, (K - 1 - lo) // s before
and ceil(lo / s) behind the block's own, so it exchanges rows of dy and convolves once:

    dx[i] = sum_k w[k] dy[(i + lo - k) / s]

Left to itself, differentiation would instead convolve onto the extended block and send
its edges back: more rows to compute (25 % at 8 rows and K = 3).

Without a split dim nothing is fetched, and this is `jaxdist.layers.conv_gradients` with
its gradients.

On a TPU that has few samples a convolution cuts the last dim into tiles and takes these
as samples, split or not (docs/adr/0105): halos between tiles are the device's own rows.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.core.axes import SPATIAL_AXES, spatial_axes
from jaxdist.layers.conv_gradients import convolve, input_gradient, kernel_gradient
from jaxdist.layers.manual_axes import (
    manual_axes,
    manual_axis_sizes,
    manual_platform,
)
from jaxdist.layers.window import Window, Windows

Pairs = tuple[tuple[int, int], ...]

Pieces = tuple[jax.Array, ...]
"""Rows of neighbours, in their order; an array from each."""

PIPE_AXIS: Final = "pipe"
"""The axis along which devices may do different work."""


def halo_exchange(
    x: jax.Array, dim: int, lo: int, hi: int, axis: str, pad_value: float = 0.0
) -> jax.Array:
    """Extend a block by rows of its neighbours along a manual axis.

    Args:
        x: this device's block, any dtype.
        dim: the split dim of `x`.
        lo: rows wanted from the blocks before this one.
        hi: rows wanted from the blocks behind it; negative crops as many.
        axis: the manual axis along which the dim is split.
        pad_value: value of rows beyond the global edges.

    Returns:
        The block with `lo + hi` more rows along `dim`.
    """
    return _ExtendedBlock(x).fetch(dim, lo, hi, axis, pad_value).join()


@dataclass(frozen=True)
class _ExtendedBlock:
    """A block and the halos of some of its dims, not joined yet.

    What the neighbours along the next dim want is cut out of the parts. Cut out of
    joined rows it would wait for the join of each dim, a copy of the whole block.
    """

    block: jax.Array
    halos: tuple[tuple[int, Pieces, Pieces], ...] = ()
    """Dims, in the order in which they were fetched, and rows before and behind. Rows
    of a later dim have the halos of the earlier."""

    def rows(self, dim: int, start: int, stop: int) -> jax.Array:
        """Return rows of a dim that has no halo yet, with the halos of the others."""
        cut = functools.partial(
            lax.slice_in_dim, start_index=start, limit_index=stop, axis=dim
        )
        return self._join(cut)

    def join(self) -> jax.Array:
        """Return the block with its halos."""
        return self._join(lambda rows: rows)

    def _join(self, part: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Join a part of each piece."""
        joined = part(self.block)
        for dim, before, behind in self.halos:
            pieces = [*map(part, before), joined, *map(part, behind)]
            joined = lax.concatenate(pieces, dim) if len(pieces) > 1 else joined
        return joined

    def fetch(
        self, dim: int, lo: int, hi: int, axis: str, fill: float = 0.0
    ) -> "_ExtendedBlock":
        """Fetch the halo of one more dim, with the arguments of `halo_exchange`."""
        devices, block = lax.axis_size(axis), self.block.shape[dim]
        before: list[jax.Array] = []
        behind: list[jax.Array] = []
        for pieces, rows, sign in ((before, lo, +1), (behind, hi, -1)):
            # Nearest neighbour first; more rows than a block come from further off.
            for hop, take in halo_hops(rows, block):
                start = block - take if sign > 0 else 0
                edge = self.rows(dim, start, start + take)
                pieces.append(_send(edge, axis, sign * hop, devices, fill))
        return self._extended(dim, (*reversed(before),), (*behind,), hi)

    def fetch_tiles(
        self, tiles: int, lo: int, hi: int, axis: str | None
    ) -> "_ExtendedBlock":
        """Fetch the halos of tiles of the last dim, which are samples of the block.

        Args:
            tiles: of which the block's samples are: those of one, and then of the next.
            lo: rows wanted from the tile before each, at most as many as it has.
            hi: rows wanted from the tile behind it.
            axis: the manual axis along which the dim is split; None: it is whole.
        """
        dim, rows = self.block.ndim - 2, self.block.shape[-2]
        samples = self.block.shape[0] // tiles

        def neighbours(count: int, start: int, hop: int) -> Pieces:
            if not count:
                return ()
            # Of the outermost tile they are the next block's, of others this block's.
            edges = self.rows(dim, start, start + count)
            outermost = slice(-samples, None) if hop > 0 else slice(samples)
            others = slice(-samples) if hop > 0 else slice(samples, None)
            if axis is None:
                got = jnp.zeros_like(edges[outermost])
            else:
                got = _send(edges[outermost], axis, hop, lax.axis_size(axis), 0.0)
            both = (got, edges[others])
            return (lax.concatenate(both if hop > 0 else both[::-1], 0),)

        before, behind = neighbours(lo, rows - lo, 1), neighbours(hi, 0, -1)
        return self._extended(dim, before, behind, hi)

    def _extended(
        self, dim: int, before: Pieces, behind: Pieces, hi: int
    ) -> "_ExtendedBlock":
        if hi < 0:
            # A window whose stride is larger than its extent skips a block's last rows.
            cropped = self.rows(dim, 0, self.block.shape[dim] + hi)
            return _ExtendedBlock(cropped, ((dim, before, behind),))
        return replace(self, halos=(*self.halos, (dim, before, behind)))


def halo_hops(rows: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield how rows of a halo are fetched: blocks from here, and rows of that block.

    >>> list(halo_hops(5, 2)), list(halo_hops(-1, 2))
    ([(1, 2), (2, 2), (3, 1)], [])
    """
    for hop, start in enumerate(range(0, rows, block), start=1):
        yield hop, min(rows - start, block)


def _send(edge: jax.Array, axis: str, hop: int, devices: int, fill: float) -> jax.Array:
    """Send `edge` `hop` devices along; a device without a sender gets `fill`."""
    pairs = tuple((i, i + hop) for i in range(devices) if 0 <= i + hop < devices)
    if not pairs:
        return jnp.full_like(edge, fill)
    got = _permute(edge, axis, pairs)
    if fill == 0.0:  # a permute leaves zeros where nobody sends
        return got
    # The device that this one would have received from, if there is one.
    lacks = lax.axis_index(axis) - hop
    inside = (lacks >= 0) & (lacks < devices)
    return jnp.where(inside, got, jnp.asarray(fill, got.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _permute(x: jax.Array, axis: str, pairs: Pairs) -> jax.Array:
    """Permute; 16-bit floats travel as their bits, which no backend widens."""
    narrow = x.dtype.itemsize == 2
    bits = lax.bitcast_convert_type(x, jnp.uint16) if narrow else x
    if not manual_axes((PIPE_AXIS,)):
        got = lax.ppermute(bits, axis, pairs)
    else:
        # Stages do different work. On CPUs a permute waits for every device of the
        # program, and other stages do not come to it; a gather waits for its own group
        # alone.
        sources = dict.fromkeys(range(lax.axis_size(axis)), -1)
        sources |= {receiver: sender for sender, receiver in pairs}
        source = jnp.asarray(list(sources.values()))[lax.axis_index(axis)]
        rows = lax.all_gather(bits, axis)[jnp.maximum(source, 0)]
        got = jnp.where(source >= 0, rows, jnp.zeros_like(rows))
    return lax.bitcast_convert_type(got, x.dtype) if narrow else got


def _permute_forward(x: jax.Array, axis: str, pairs: Pairs) -> tuple[jax.Array, None]:
    return _permute(x, axis, pairs), None


def _permute_backward(
    axis: str, pairs: Pairs, saved: None, ct: jax.Array
) -> tuple[jax.Array]:
    # Gradients of fetched rows go back to where these came from.
    return (_permute(ct, axis, tuple((b, a) for a, b in pairs)),)


_permute.defvjp(_permute_forward, _permute_backward)


Rows = tuple[int, ...]
"""Real rows of an image along each dim between batch and channels."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a layer's images are cut over devices."""

    axes: tuple[str, ...] = SPATIAL_AXES
    """Axes that cut its images where they are manual; none where images are whole."""
    rows: Rows | None = None
    """Real rows of the whole input; None where all are."""
    samples: tuple[str, ...] = ()
    """Axes that split its samples, where they cut images before."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Axes along which devices have parts of the same samples, in any form."""
        return (*self.axes, *self.samples)

    def dims(self, x: jax.Array) -> dict[int, str]:
        """Return {dim: axis} of the dims of `x [B, ..., C]` that are cut."""
        # Outside of a shard_map no axis is manual: the same layer sees whole images.
        here = manual_axis_sizes().keys() & self.axes
        names = enumerate(spatial_axes(x.ndim), start=1)
        return {dim: name for dim, name in names if name in here}

    def real(self, x: jax.Array) -> Rows:
        """Return the real rows of the image that `x [B, ..., C]` is a block of."""
        if self.rows:
            return self.rows
        split, sizes = self.dims(x), manual_axis_sizes()
        return tuple(
            n * sizes[split[dim]] if dim in split else n
            for dim, n in enumerate(x.shape[1:-1], start=1)
        )


def local_samples(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """Slice this device's samples out of `x [B, ...]`, split over manual axes."""
    if not (here := manual_axes(axes)):
        return x
    size = x.shape[0] // lax.axis_size(here)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(here) * size, size)


Saved = tuple[jax.Array | None, jax.Array | None]
"""The extended input, if the kernel has a gradient; the kernel, if the input has."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def halo_conv(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Convolve this device's block, fetching halos along split dims.

    Args:
        x: block `[B, ..., C_in]`.
        kernel: `[..., C_in / groups, C_out]`, the dtype of `x`.
        windows: one for each dim between batch and channels.
        groups: feature groups.

    Returns:
        The block of the output, `[B, ..., C_out]`.
    """
    tiles = _tile_count(x.shape[0], windows)
    wide, over = _extend(x, windows, tiles)
    return _untile(convolve(wide, kernel, over, groups), tiles)


def _forward(
    x: Any, kernel: Any, windows: Windows, groups: int
) -> tuple[jax.Array, Saved]:
    """Convolve, and save what the gradients that are asked for need.

    Args:
        x: with `value` and `perturbed`, whether its gradient is asked for.
        kernel: the same.
        windows: as in `halo_conv`.
        groups: as in `halo_conv`.
    """
    # Halos are part of the saved input: the kernel gradient needs no second fetch.
    tiles = _tile_count(x.value.shape[0], windows)
    wide, over = _extend(x.value, windows, tiles)
    return _untile(convolve(wide, kernel.value, over, groups), tiles), (
        wide if kernel.perturbed else None,
        kernel.value if x.perturbed else None,
    )


def _backward(
    windows: Windows, groups: int, saved: Saved, dy: jax.Array
) -> tuple[jax.Array | None, jax.Array | None]:
    wide, kernel = saved
    dx = dkernel = None
    if kernel is not None:
        dx = _block_input_gradient(dy, kernel, windows, groups)
    if wide is not None:
        tiles = _tile_count(dy.shape[0], windows)
        over = _extended_windows(windows, tiles)
        dkernel = kernel_gradient(wide, _tile(dy, tiles), over, groups)
    return dx, dkernel


def _block_input_gradient(
    dy: jax.Array, kernel: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Return the input gradient of a convolution of blocks, fetching rows of `dy`."""
    tiles = _tile_count(dy.shape[0], windows)
    halos = [gradient_halo(window) for window in windows]
    extended = _fetch_halos(dy, windows, halos, tiles)
    # The extended dy: its first row is one of the block before, so the input begins as
    # many strides further on.
    over = tuple(
        replace(w, pads=(w.pads[0] + before * w.stride, w.pads[1])) if fetched else w
        for w, (before, _), fetched in zip(
            _tile_windows(windows, tiles),
            halos,
            _has_halos(windows, tiles),
            strict=True,
        )
    )
    return _untile(input_gradient(extended, kernel, over, groups), tiles)


# symbolic_zeros: says which gradients are asked for. The input of the first layer has
# none, and without it the kernel need not be kept.
halo_conv.defvjp(_forward, _backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def halo_conv_transpose(x: jax.Array, kernel: jax.Array, windows: Windows) -> jax.Array:
    """Transpose a convolution of blocks: what `halo_conv` has as its input gradient.

    Args:
        x: block of the input `[B, ..., C_in]`: outputs of that convolution.
        kernel: of that convolution, `[..., C_out, C_in]`, the dtype of `x`.
        windows: of that convolution, over this device's block of the output.

    Returns:
        The block of the output, `[B, ..., C_out]`.
    """
    return _block_input_gradient(x, kernel, windows)


def _transpose_forward(
    x: Any, kernel: Any, windows: Windows
) -> tuple[jax.Array, Saved]:
    """Transpose, and save what the gradients that are asked for need."""
    y = _block_input_gradient(x.value, kernel.value, windows)
    return y, (
        x.value if kernel.perturbed else None,
        kernel.value if x.perturbed else None,
    )


def _transpose_backward(
    windows: Windows, saved: Saved, dy: jax.Array
) -> tuple[jax.Array | None, jax.Array | None]:
    x, kernel = saved
    # One fetch serves both gradients, which are those of the convolution swapped.
    tiles = _tile_count(dy.shape[0], windows)
    wide, over = _extend(dy, windows, tiles)
    return (
        None if kernel is None else _untile(convolve(wide, kernel, over), tiles),
        None if x is None else kernel_gradient(wide, _tile(x, tiles), over),
    )


halo_conv_transpose.defvjp(_transpose_forward, _transpose_backward, symbolic_zeros=True)


def _extend(x: jax.Array, windows: Windows, tiles: int) -> tuple[jax.Array, Windows]:
    """Return the tiles of a block with their halos, and the windows over these."""
    wide = _fetch_halos(x, windows, [w.pads for w in windows], tiles)
    return wide, _extended_windows(windows, tiles)


def _extended_windows(windows: Windows, tiles: int) -> Windows:
    """Return the windows over a block, or tiles of it, and the halos."""
    return tuple(
        replace(w, rows=w.rows + sum(w.pads), pads=(0, 0)) if fetched else w
        for w, fetched in zip(
            _tile_windows(windows, tiles), _has_halos(windows, tiles), strict=True
        )
    )


def _fetch_halos(
    x: jax.Array, windows: Windows, halos: Sequence[tuple[int, int]], tiles: int
) -> jax.Array:
    """Add a halo along split dims, and between tiles; a convolution pads the others.

    Args:
        x: this device's block, `[B, ..., C]`.
        windows: which say along which axes it is split.
        halos: rows before and behind, for each dim between batch and channels.
        tiles: into how many samples the last of these dims is cut.
    """
    extended = _ExtendedBlock(_tile(x, tiles))
    for dim, (window, halo) in enumerate(zip(windows, halos, strict=True), start=1):
        if tiles > 1 and dim == len(windows):
            extended = extended.fetch_tiles(tiles, *halo, window.axis)
        elif window.axis is not None:
            extended = extended.fetch(dim, *halo, window.axis)
    return extended.join()


def _has_halos(windows: Windows, tiles: int) -> tuple[bool, ...]:
    """Return for each dim whether it has a halo, and is not padded."""
    *split, last = (window.axis is not None for window in windows)
    return (*split, last or tiles > 1)


def _tile_windows(windows: Windows, tiles: int) -> Windows:
    """Return the windows over each tile of the last dim."""
    return (*windows[:-1], replace(windows[-1], rows=windows[-1].rows // tiles))


SUBLANES: Final = 8
"""Rows of 128 numbers that are a tile of a TPU's memory."""


def _tile_count(samples: int, windows: Windows) -> int:
    """Return into how many samples a TPU's convolution had better cut the last dim.

    A TPU lays out a convolution's arrays with channels in its lanes and samples in its
    8 sublanes. Of fewer samples its compiler makes 8 by cutting rows itself, and as
    rows with a halo divide by 8 no more, it pads them and copies the block several
    times (docs/adr/0105).
    """
    last, tiles = windows[-1], SUBLANES // math.gcd(samples, SUBLANES)
    lo, hi = last.pads
    reach = max(lo, hi, *gradient_halo(last))
    return (
        tiles
        if manual_platform() == "tpu"
        and samples < SUBLANES
        and min(lo, hi) >= 0
        and last.rows % (tiles * last.stride) == 0
        and last.outputs * last.stride == last.rows
        # Shorter tiles compute more of their neighbours than of themselves.
        and last.rows // (tiles * last.stride) > reach
        else 1
    )


def _tile(x: jax.Array, tiles: int) -> jax.Array:
    """Cut rows `[B, ..., W, C]` into samples, `[tiles B, ..., W / tiles, C]`."""
    if tiles == 1:
        return x
    *rest, rows, channels = x.shape
    split = x.reshape(*rest, tiles, rows // tiles, channels)
    turned = jnp.moveaxis(split, -3, 0)
    return turned.reshape(tiles * rest[0], *rest[1:], rows // tiles, channels)


def _untile(y: jax.Array, tiles: int) -> jax.Array:
    """Undo `_tile`."""
    if tiles == 1:
        return y
    samples, *rest, rows, channels = y.shape
    split = y.reshape(tiles, samples // tiles, *rest, rows, channels)
    turned = jnp.moveaxis(split, 0, -3)
    return turned.reshape(samples // tiles, *rest, tiles * rows, channels)


def gradient_halo(window: Window) -> tuple[int, int]:
    """Return the rows of dy that the input gradient needs before and behind a block.

    >>> gradient_halo(Window(8, 3, pads=(1, 1), axis="spatial_h"))
    (1, 1)
    >>> gradient_halo(Window(8, 3, stride=2, pads=(0, 1), axis="spatial_h"))
    (1, 0)
    """
    lo = window.pads[0]
    # Outputs whose windows reach into this block from the block before, and behind.
    before = (window.extent - 1 - lo) // window.stride
    return max(before, 0), -(-lo // window.stride)
