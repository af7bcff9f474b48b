"""Spatial parallelism: every sample is cut into blocks, and edges are exchanged.

Rule: at every layer a block holds whole strides, and gives a row for each of them.
Traffic a step along a split dim (b rows a block, kernel extent K, stride s, lo and hi
of `jaxdist.layers.window`; B samples, W the other dims of a block):

    forward    (lo + hi) rows of the input: B * rows * W * C_in
    backward   convolution: ((K - 1 - lo) // s + ceil(lo / s)) rows of the output's
               gradient; pooling: (lo + hi) rows of the input's gradient
    means      the averaged features, [B, C] or a grid, forward and backward

Source: Dryden et al. 2019, "Improving Strong-Scaling of CNN Training by Exploiting
Finer-Grained Parallelism", section III; halo counts for strides are ours.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from jaxdist.core.axes import spatial_axes_of
from jaxdist.core.dtypes import wide
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import Conv, GlobalMean, GridMean
from jaxdist.layers.halo_conv import gradient_halo
from jaxdist.layers.pool import Pool
from jaxdist.layers.role import Roles
from jaxdist.layers.window import Window, Windows
from jaxdist.partition.tensor import own_channels
from jaxdist.partition.traffic import Traffic, real_axes
from jaxdist.profile.calls import Call, of_kind


def check(plan: Plan, calls: Sequence[Call]) -> None:
    """Refuse a split that is too fine for some layer.

    Raises:
        BadInput: naming the layer, its rows and the finest split that works.
    """
    for dim, axis in enumerate(_axes(calls), start=1):
        if not _fits(calls, dim, devices := plan.mesh.size(axis)):
            works = max(n for n in range(1, devices) if _fits(calls, dim, n))
            call = next(c for c in _windowed(calls) if not _whole(c, dim, devices))
            window = _window(call, dim)
            raise BadInput(
                f"{axis} is too fine for the image",
                rule="at every layer each device holds whole strides of rows "
                "and gives a row for each",
                values=f"{call.path} has {window.rows} rows and stride {window.stride}"
                f" and gives {window.outputs}, plan.mesh.{axis} = {devices}",
                remedy=f"plan.mesh.{axis}={works}",
            )


def halos(plan: Plan, calls: Sequence[Call], roles: Roles) -> Iterator[Traffic]:
    """Yield the rows every convolution and pooling sends to its neighbours."""
    for call in map(partial(own_channels, plan, roles), _windowed(calls)):
        block, windows = device_block(plan, call)
        item = np.dtype(call.dtype).itemsize
        forward = _rows(block, windows, {d: w.pads for d, w in _cut(windows)})
        backward = {} if call.first else _backward(plan, call, windows, forward)
        for axis in _split(plan, call.shape).values():
            numbers = forward.get(axis, 0) + backward.get(axis, 0)
            yield Traffic(
                what="halo",
                kind="collective-permute",
                axes=(axis,),
                payload=numbers * item,
                layer=call.path,
            )


def device_block(plan: Plan, call: Call) -> tuple[tuple[int, ...], Windows]:
    """Return one device's block of a layer's input, and the windows that pass over it.

    Args:
        plan: the layout.
        call: a use of a convolution or pooling, on the global batch.
    """
    block, split = block_of(plan, call.shape), _split(plan, call.shape)
    sizes = {axis: plan.mesh.size(axis) for axis in split.values()}
    return block, call.layer.windows(block, split, sizes)


def means(plan: Plan, calls: Sequence[Call]) -> Iterator[Traffic]:
    """Yield the sums of averages over positions, which end the split."""
    for call in (*of_kind(calls, GlobalMean), *of_kind(calls, GridMean)):
        if axes := real_axes(plan, spatial_axes_of(len(call.shape))):
            features = math.prod(call.out_shape) // plan.mesh.batch_shards
            yield Traffic(
                what="all-reduce",
                kind="all-reduce",
                axes=axes,
                payload=2 * features * wide(call.dtype).itemsize,
                layer=call.path,
            )


def _backward(
    plan: Plan, call: Call, windows: Windows, forward: dict[str, int]
) -> dict[str, int]:
    """Count the numbers fetched along each axis for the gradient of the input."""
    if isinstance(call.layer, Pool):  # the gradients of the halo's rows go back
        return forward
    back = {d: gradient_halo(w) for d, w in _cut(windows)}
    return _rows(block_of(plan, call.out_shape), windows, back)


def _rows(
    block: Sequence[int], windows: Sequence[Window], need: dict[int, tuple[int, int]]
) -> dict[str, int]:
    """Count the numbers fetched along each axis; a later dim includes earlier halos."""
    shape, fetched = list(block), {}
    for dim, (lo, hi) in need.items():
        axis = windows[dim - 1].axis or ""
        rest = math.prod(shape) // shape[dim]
        fetched[axis] = rest * (max(lo, 0) + max(hi, 0))
        shape[dim] += lo + hi
    return fetched


def _cut(windows: Sequence[Window]) -> list[tuple[int, Window]]:
    return [(dim, w) for dim, w in enumerate(windows, start=1) if w.axis]


def _windowed(calls: Sequence[Call]) -> list[Call]:
    return [*of_kind(calls, Conv), *of_kind(calls, Pool)]


def _axes(calls: Sequence[Call]) -> tuple[str, ...]:
    return spatial_axes_of(max((len(c.shape) for c in calls), default=0))


def _split(plan: Plan, shape: Sequence[int]) -> dict[int, str]:
    names = enumerate(spatial_axes_of(len(shape)), start=1)
    return {dim: axis for dim, axis in names if plan.mesh.size(axis) > 1}


def block_of(plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one device's block of a global array."""
    block = [shape[0] // plan.mesh.batch_shards, *shape[1:]]
    for dim, axis in _split(plan, shape).items():
        block[dim] //= plan.mesh.size(axis)
    return tuple(block)


def _window(call: Call, dim: int) -> Window:
    """Return the window over a dim of the whole image."""
    windows: Windows = call.layer.windows(call.shape, {}, {})
    return windows[dim - 1]


def _whole(call: Call, dim: int, devices: int) -> bool:
    return _window(call, dim).cuts(devices)


def _fits(calls: Sequence[Call], dim: int, devices: int) -> bool:
    return devices == 1 or all(_whole(c, dim, devices) for c in _windowed(calls))
