"""Spatial parallelism: every sample is cut into blocks, and edges are exchanged.

Rule: at every layer a block holds whole strides (`jaxdist.partition.block_padding`).
Traffic a step along a split dim (b rows a block, kernel extent K, stride s, lo and hi
of `jaxdist.layers.window`; B samples, W the other dims of a block):

    forward    (lo + hi) rows of the input: B * rows * W * C_in
    backward   convolution: ((K - 1 - lo) // s + ceil(lo / s)) rows of the output's
               gradient; pooling: (lo + hi) rows of the input's gradient
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
from functools import partial
from typing import Any

import numpy as np

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.layers import Conv, Exchange, Gather, GlobalMean, GridMean
from jaxdist.layers.halo import PIPE_AXIS, halo_hops
from jaxdist.layers.halo_conv import gradient_halo
from jaxdist.layers.pool import Pool
from jaxdist.layers.tensor_role import Roles
from jaxdist.layers.window import Window, Windows, block_windows
from jaxdist.partition.tensor_parallel import localize_channels
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.profile.layer_calls import LayerCall, calls_of_type


def halo_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield the rows every convolution and pooling fetches from its neighbours.

    Branches that need the same rows of the same array fetch them once: the compiler
    merges equal operations, and that is counted on.
    """
    known: set[HaloFetch] = set()
    for call in map(partial(localize_channels, plan, roles), _window_calls(calls)):
        forward = [f for f in _forward_fetches(plan, call, roles) if f not in known]
        known.update(forward)
        backward = _backward_fetches(plan, call, roles)
        for axis in _split_dims(plan, call.shape).values():
            fetched = [f.elements for f in (*forward, *backward) if f.axis == axis]
            # Among stages each edge is gathered by the whole axis: `layers.halo`.
            staged = plan.mesh.size(PIPE_AXIS) > 1
            yield PlannedCollective(
                what="halo",
                kind="all-gather" if staged else "collective-permute",
                axes=(axis,),
                payload=sum(fetched)
                * (plan.mesh.size(axis) if staged else 1)
                * np.dtype(call.dtype).itemsize,
                layer=call.path,
                arrays=len(fetched),
            )


def device_block(plan: Plan, call: LayerCall) -> tuple[tuple[int, ...], Windows]:
    """Return one device's block of a layer's input, and the windows that pass over it.

    Args:
        plan: the layout.
        call: a use of a convolution or pooling, on the global batch.
    """
    block, split = block_shape(plan, call.padded_shape), _split_dims(plan, call.shape)
    return block, block_windows(
        call.layer.windows(call.shape[1:-1]), split, block, call.path
    )


def mean_traffic(plan: Plan, calls: Sequence[LayerCall]) -> Iterator[PlannedCollective]:
    """Yield the sums of averages over positions, which end the split."""
    for call in (*calls_of_type(calls, GlobalMean), *calls_of_type(calls, GridMean)):
        if axes := nontrivial_axes(plan, spatial_axes(len(call.shape))):
            features = math.prod(call.out_shape) // plan.mesh.batch_shards
            yield PlannedCollective(
                what="all-reduce",
                kind="all-reduce",
                axes=axes,
                payload=2 * features * accumulation_dtype(call.dtype).itemsize,
                layer=call.path,
                arrays=2,
            )


def gather_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield what puts images together where the plan ends their split."""
    for call in map(
        partial(localize_channels, plan, roles), calls_of_type(calls, Gather)
    ):
        held, full = (
            np.dtype(call.dtype).itemsize,
            accumulation_dtype(call.dtype).itemsize,
        )
        shape = list(block_shape(plan, call.padded_shape))
        for dim, axis in _split_dims(plan, call.shape).items():
            part, devices = math.prod(shape), plan.mesh.size(axis)
            shape[dim] = call.shape[dim]
            moved = {
                "all-gather": part * devices * held,
                "reduce-scatter": part * full,
            }
            if isinstance(call.layer, Exchange):
                shape[0] //= devices
                moved = {"all-to-all": 2 * part * held}
            for kind, payload in moved.items():
                yield PlannedCollective(
                    what="gather",
                    kind=kind,
                    axes=(axis,),
                    payload=payload,
                    layer=call.path,
                    arrays=2 if kind == "all-to-all" else 1,
                )


@dataclass(frozen=True, kw_only=True)
class HaloFetch:
    """Rows that one exchange takes from one neighbour."""

    axis: str
    """Axis along which they are fetched."""
    elements: int
    """Numbers that a device gets."""
    source: tuple[Any, ...]
    """The array and its rows: equal where two exchanges get the same."""


def _forward_fetches(plan: Plan, call: LayerCall, roles: Roles) -> list[HaloFetch]:
    """List what a window fetches of its input."""
    block, windows = device_block(plan, call)
    filled = tuple(
        (dim, call.layer.fill)
        for dim, window in enumerate(call.layer.windows(call.shape[1:-1]), start=1)
        if window.overhang and call.padded_shape[dim] > window.rows
    )
    need = {dim: w.pads for dim, w in _split_windows(windows)}
    groups = getattr(call.layer, "feature_group_count", 1)
    slice_of = (roles.get(call.path), groups) if _slices_input(call, roles) else None
    array = (call.input_call, np.dtype(call.dtype), slice_of, filled)
    return list(_iter_fetches(plan, block, windows, need, array, call.layer.fill))


def _backward_fetches(plan: Plan, call: LayerCall, roles: Roles) -> list[HaloFetch]:
    """List what is fetched for the gradient of the input."""
    if call.is_first:
        return []
    if isinstance(call.layer, Pool):  # the gradients of the halo's rows go back
        return _forward_fetches(plan, call, roles)
    (_, windows), out = (
        device_block(plan, call),
        block_shape(plan, call.padded_out_shape),
    )
    need = {dim: gradient_halo(w) for dim, w in _split_windows(windows)}
    return list(_iter_fetches(plan, out, windows, need, (), 0.0))


def _iter_fetches(
    plan: Plan,
    block: Sequence[int],
    windows: Windows,
    need: Mapping[int, tuple[int, int]],
    array: tuple[Any, ...],
    fill: float,
) -> Iterator[HaloFetch]:
    """Yield the fetches along each dim; a later dim includes earlier halos."""
    shape = list(block)
    for dim, sides in need.items():
        axis = windows[dim - 1].axis or ""
        rest = math.prod(shape) // shape[dim]
        for side, rows in enumerate(sides):
            for hop, take in halo_hops(rows, shape[dim]):
                if hop < plan.mesh.size(axis):  # else from beyond the edge
                    what = (*array, dim, side, hop, take)
                    yield HaloFetch(axis=axis, elements=rest * take, source=what)
        shape[dim] += sum(sides)
        array = (*array, dim, sides, fill if max(sides) > 0 else None)


def _split_windows(windows: Sequence[Window]) -> list[tuple[int, Window]]:
    return [(dim, w) for dim, w in enumerate(windows, start=1) if w.axis]


def _window_calls(calls: Sequence[LayerCall]) -> list[LayerCall]:
    return [*calls_of_type(calls, Conv), *calls_of_type(calls, Pool)]


def _split_dims(plan: Plan, shape: Sequence[int]) -> dict[int, str]:
    names = enumerate(spatial_axes(len(shape)), start=1)
    return {dim: axis for dim, axis in names if plan.mesh.size(axis) > 1}


def block_shape(plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one device's block of a global array."""
    block = [shape[0] // plan.mesh.batch_shards, *shape[1:]]
    for dim, axis in _split_dims(plan, shape).items():
        block[dim] //= plan.mesh.size(axis)
    return tuple(block)


def _slices_input(call: LayerCall, roles: Roles) -> bool:
    """Tell whether a convolution cuts its own channels out of what it reads."""
    role = roles.get(call.path)
    groups = getattr(call.layer, "feature_group_count", 1)
    return role == "channel" or (role in ("filter", "column") and groups > 1)
