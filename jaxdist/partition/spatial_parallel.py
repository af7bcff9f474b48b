"""Spatial parallelism: every sample is cut into blocks, which exchange their halos.

At every layer a block holds whole strides (`jaxdist.partition.block_padding`).
Traffic a step along a split dim (b rows a block, kernel extent K, stride s, lo and hi
of `jaxdist.layers.window`; B samples, W the other dims of a block):

    forward    (lo + hi) rows of the input: B * rows * W * C_in
    backward   convolution: ((K - 1 - lo) // s + ceil(lo / s)) rows of the output's
               gradient; pooling: (lo + hi) rows of the input's gradient
    transposed convolution: the two swapped, forward rows of the input, backward of the
               output's gradient; linear upsampling: as pooling, a row on each side
    norms      mean and variance of each sample's groups of channels, [B, groups], and
               backward their gradients
    means      the averaged features, [B, C] or a grid, forward and backward
    gather     forward the rows of all devices, backward a device's part of their
               gradients, dim by dim: an all-gather and a reduce-scatter; or, for
               samples, both times as much as a device has: two all-to-alls

Source: Dryden et al. 2019, "Improving Strong-Scaling of CNN Training by Exploiting
Finer-Grained Parallelism", section III; halo counts for strides are ours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import nnx

from jaxdist.core.axes import position_axes, spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.layers import (
    Conv,
    ConvTranspose,
    Exchange,
    Gather,
    GlobalMean,
    GridMean,
    GroupNorm,
    Upsample,
)
from jaxdist.layers.halo import PIPE_AXIS, gradient_halo, halo_hops
from jaxdist.layers.pool import Pool
from jaxdist.layers.tensor_role import Roles
from jaxdist.layers.window import Window, Windows, block_windows, reads_behind
from jaxdist.partition.tensor_parallel import localize_channels
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.profile.layer_calls import LayerCall, calls_of_type


@dataclass(frozen=True, kw_only=True)
class HaloFetch:
    """Rows that one exchange takes from one neighbour."""

    axis: str
    """Axis along which they are fetched."""
    elements: int
    """Numbers that a device gets."""
    source: tuple[Any, ...]
    """The array and its rows: equal where two exchanges get the same."""


def halo_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield the halos that every convolution and pooling exchanges.

    Branches that need the same rows of the same array fetch them once: the compiler
    merges equal operations, and that is counted on.
    """
    known: set[HaloFetch] = set()
    kinds = Conv, Pool, ConvTranspose, Upsample
    for call in (each for kind in kinds for each in calls_of_type(calls, kind)):
        own, layer = localize_channels(plan, roles, call), call.layer
        # Fetches are of the channels that this device reads: its slice by its role.
        windows = device_windows(plan, own)
        split = {dim: w for dim, w in enumerate(windows, start=1) if w.axis}
        block = block_shape(plan, own.padded_shape)
        out = block_shape(plan, own.padded_out_shape)

        # Two layers fetch equal rows if they read the same array, slice channels alike
        # and fill padding rows with the same value.
        groups = getattr(layer, "feature_group_count", 1)
        role, fill = roles.get(call.path), getattr(layer, "fill", 0.0)
        slices = role == "channel" or (role in ("filter", "column") and groups > 1)
        filled = tuple(
            (dim, fill)
            for dim, window in enumerate(layer.windows(own.shape[1:-1]), start=1)
            if own.padded_shape[dim] > own.shape[dim] and _meets_padding(layer, window)
        )
        array = (
            own.input_call,
            np.dtype(own.dtype),
            (role, groups) if slices else None,
            filled,
        )
        # Rows that the windows reach over, of the array that they pass over, and those
        # that the transpose reaches over, of the other.
        reach = {dim: window.pads for dim, window in split.items()}
        transpose = {dim: gradient_halo(window) for dim, window in split.items()}
        need = reach
        if isinstance(layer, ConvTranspose):
            need = transpose
        elif isinstance(layer, Upsample):
            need = dict.fromkeys(split, layer.halo)
        wanted = list(_iter_fetches(plan, block, windows, need, array, fill))
        forward = [fetch for fetch in dict.fromkeys(wanted) if fetch not in known]
        known.update(forward)

        backward: list[HaloFetch] = []
        if isinstance(layer, ConvTranspose):
            # One fetch of the output's gradient serves input and kernel.
            if call.input_gradient or call.weight_gradient:
                fetches = _iter_fetches(plan, out, windows, reach, (), 0.0)
                backward = list(dict.fromkeys(fetches))
        elif not call.input_gradient:  # the network's input, or behind frozen layers
            pass
        elif isinstance(layer, Conv):
            fetches = _iter_fetches(plan, out, windows, transpose, (), 0.0)
            backward = list(dict.fromkeys(fetches))
        else:  # the gradients of the halo's rows go back
            backward = wanted

        # One row an axis: each has links of its own.
        for axis in _split_dims(plan, own.shape).values():
            fetched = [f.elements for f in (*forward, *backward) if f.axis == axis]
            # Among stages each edge is gathered by the whole axis: `layers.halo`.
            staged = plan.mesh.size(PIPE_AXIS) > 1
            copies = plan.mesh.size(axis) if staged else 1
            yield PlannedCollective(
                what="halo",
                kind="all-gather" if staged else "collective-permute",
                axes=(axis,),
                payload=sum(fetched) * copies * np.dtype(own.dtype).itemsize,
                layer=own.path,
                arrays=len(fetched),
            )


def device_windows(plan: Plan, call: LayerCall) -> Windows:
    """Return the windows that pass over one device's block.

    Over the block of a layer's input; of its output, where that has more rows.

    Args:
        plan: the layout.
        call: a use of a layer with windows, on the global batch.
    """
    upsamples = isinstance(call.layer, ConvTranspose | Upsample)
    shape = call.padded_out_shape if upsamples else call.padded_shape
    # Windows over the real image, cut into blocks that may hold padding.
    windows = call.layer.windows(call.shape[1:-1])
    split = _split_dims(plan, call.shape)
    return block_windows(windows, split, block_shape(plan, shape), call.path)


def _meets_padding(layer: nnx.Module, window: Window) -> bool:
    """Tell whether a layer replaces rows behind the last real one of its input."""
    if isinstance(layer, Upsample):
        return False
    if isinstance(layer, ConvTranspose):
        return reads_behind(window)
    return window.overhang > 0


def mean_traffic(plan: Plan, calls: Sequence[LayerCall]) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of averages over positions, which end the split."""
    for call in (*calls_of_type(calls, GlobalMean), *calls_of_type(calls, GridMean)):
        # The sum of averages and, backward, that of their gradients.
        if axes := nontrivial_axes(plan, spatial_axes(len(call.shape))):
            features = math.prod(call.out_shape) // plan.mesh.batch_shards
            arrays = 1 + call.input_gradient
            yield PlannedCollective(
                what="all-reduce",
                kind="all-reduce",
                axes=axes,
                payload=arrays * features * accumulation_dtype(call.dtype).itemsize,
                layer=call.path,
                arrays=arrays,
            )


def group_norm_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of the statistics of each sample's groups of channels."""
    for call in calls_of_type(calls, GroupNorm):
        if axes := nontrivial_axes(plan, spatial_axes(len(call.shape))):
            # Between the layers of a tensor-parallel pair a device has its own groups.
            inner = roles.get(call.path) == "inner"
            groups = call.layer.num_groups // (plan.mesh.tensor if inner else 1)
            # Forward the mean and then the variance, backward the gradients of both.
            arrays = 2 * (1 + call.input_gradient)
            numbers = call.shape[0] // plan.mesh.batch_shards * groups
            yield PlannedCollective(
                what="statistics",
                kind="all-reduce",
                axes=axes,
                payload=arrays * numbers * accumulation_dtype(call.dtype).itemsize,
                layer=call.path,
                arrays=arrays,
            )


def gather_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield the collectives that gather images where the plan ends their split."""
    for whole in calls_of_type(calls, Gather):
        call = localize_channels(plan, roles, whole)
        width = np.dtype(call.dtype).itemsize
        wide = accumulation_dtype(call.dtype).itemsize
        # One dim after the other: each gathers what the dims before have put together.
        shape = list(block_shape(plan, call.padded_shape))
        for dim, axis in _split_dims(plan, call.shape).items():
            # Forward each device gets all rows; backward it keeps its part of the
            # summed gradients, in the wider dtype.
            part, devices = math.prod(shape), plan.mesh.size(axis)
            shape[dim] = call.shape[dim]
            passes = 1 + call.input_gradient
            moved = {
                "all-gather": part * devices * width,
                "reduce-scatter": part * wide * call.input_gradient,
            }
            # An all-to-all receives as much as it sends, so later dims have fewer
            # samples.
            if isinstance(call.layer, Exchange):
                shape[0] //= devices
                moved = {"all-to-all": passes * part * width}
            for kind, payload in moved.items():
                yield PlannedCollective(
                    what="gather",
                    kind=kind,
                    axes=(axis,),
                    payload=payload,
                    layer=call.path,
                    arrays=passes if kind == "all-to-all" else 1,
                )


def _iter_fetches(
    plan: Plan,
    block: Sequence[int],
    windows: Windows,
    need: Mapping[int, tuple[int, int]],
    array: tuple[Any, ...],
    fill: float,
) -> Iterator[HaloFetch]:
    """Yield the fetches along each dim; a later dim includes earlier halos.

    `need` has the rows before and behind a block by dim, `array` what identifies it.
    """
    shape, staged = list(block), plan.mesh.size(PIPE_AXIS) > 1
    for dim, sides in need.items():
        axis = windows[dim - 1].axis or ""
        # Numbers of one row across the block, halos of earlier dims included.
        rest = math.prod(shape) // shape[dim]
        for side, rows in enumerate(sides):
            for hop, take in halo_hops(rows, shape[dim]):
                if hop < plan.mesh.size(axis):  # else from beyond the image's edge
                    edge: tuple[Any, ...] = side, hop, take
                    # Among stages an edge is gathered by the whole axis: one gather
                    # serves both sides, and all hops, where it is a whole block.
                    if staged and take == shape[dim]:
                        edge = ("block",)
                    what = (*array, dim, *edge)
                    yield HaloFetch(axis=axis, elements=rest * take, source=what)
        # Corners come along with the halo of the next dim, without diagonal messages.
        shape[dim] += sum(sides)
        array = (*array, dim, sides, fill if max(sides) > 0 else None)


def _split_dims(plan: Plan, shape: Sequence[int]) -> dict[int, str]:
    """Return the axis of each dim that is split."""
    names = enumerate(position_axes(len(shape)), start=1)
    return {dim: axis for dim, axis in names if plan.mesh.size(axis) > 1}


def block_shape(plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one device's block of a global array, samples first."""
    block = [shape[0] // plan.mesh.batch_shards, *shape[1:]]
    for dim, axis in _split_dims(plan, shape).items():
        # Exact: shapes on the devices are padded to whole blocks.
        block[dim] //= plan.mesh.size(axis)
    return tuple(block)
