"""Sizes: how many rows the blocks of split images have, and how many of them are real.

At every layer a block holds whole strides: each layer then makes a row of a stride of
rows, and nothing is computed twice. So an image of N rows on n devices lies, from the
start, in blocks of

    b = S k,    k the least with  n b / s >= N_s  at every layer,

where S is the stride of the whole network, s the stride up to a layer and N_s the rows
that the layer really has. Rows from N_s on are padding (`jaxdist.layers.valid_rows`).
Where blocks of N / n rows do already, nothing is padded and no layer is told anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from flax import nnx

from jaxdist.core.axes import spatial_axes
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import bind
from jaxdist.layers.halo import Rows, Split
from jaxdist.partition import spatial_layers
from jaxdist.partition.cumulative_stride import (
    CallStrides,
    is_spatial,
    is_windowed,
    trace_strides,
)
from jaxdist.profile.layer_calls import LayerCall, trace_calls
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace_cache import TraceCache

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BlockPadding:
    """What a step must know of how images lie; empty where it sees that itself."""

    padded_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of the network's input by spatial axis, padding included."""
    splits: Mapping[str, Split] = field(default_factory=dict)
    """How the images of layers are cut, by path: real rows, or not at all."""

    def padded_shape(self, shape: Sequence[int], axes: Sequence[str | None]) -> Shape:
        """Return the shape that an array of a batch has on the devices.

        Args:
            shape: samples first.
            axes: the axis that splits each dim behind the samples; None and the dims
                behind the last stay whole.

        >>> padding = BlockPadding(padded_rows={"spatial_h": 32})
        >>> padding.padded_shape((8, 30, 30, 3), ("spatial_h",))
        (8, 32, 30, 3)
        """
        samples, *rest = shape
        wide = [self.padded_rows.get(a or "", n) for a, n in zip(axes, rest)]
        return (samples, *wide, *rest[len(wide) :])


def fit(
    plan: Plan,
    graph: nnx.GraphDef[nnx.Module],
    state: Sequence[Any],
    *inputs: jax.ShapeDtypeStruct,
    trace_cache: TraceCache | None = None,
    repeated_blocks: RepeatedBlocks | None = None,
) -> tuple[tuple[LayerCall, ...], BlockPadding]:
    """Size the blocks of a network's arrays.

    Args:
        plan: the layout.
        graph: the network's structure.
        state: shapes of its parameters and statistics.
        inputs: shapes and dtypes of what it is called on, global batch first; its
            images are the first.
        trace_cache: of the same network, for other layouts.
        repeated_blocks: blocks that need not be read.

    Returns:
        The network's calls, with the shapes that their arrays have on the devices, and
        what a step must know.

    Raises:
        BadInput: a device would have no row of the image, a layer is called on images
            of different sizes, branches of different strides meet, or the split cannot
            end where the plan says.
    """
    until, gather = plan.spatial_until, spatial_layers.gather_layer_class(plan)
    trace_cache, key = trace_cache or TraceCache(), (until, gather, inputs)
    calls = trace_cache.get_or_compute(
        ("calls", *key),
        lambda: trace_calls(
            graph,
            state,
            *inputs,
            prepare=lambda network: bind(
                network, gather_block=until, gather_class=gather
            ),
            # What is gathered before one of them is not before the others.
            repeated_blocks=None if until else repeated_blocks,
        ),
    )
    split, whole = spatial_layers.split_at_gather(calls, until)
    splits = dict.fromkeys(
        (call.path for call in whole), spatial_layers.split_after_gather(plan)
    )
    rowed = [call for call in split if is_spatial(call)]
    axes = spatial_axes(len(rowed[0].shape)) if rowed else ()
    counts = tuple(plan.mesh.size(axis) for axis in axes)
    if all(_is_even(call, counts) for call in rowed):
        return calls, BlockPadding(splits=splits)
    splits |= {path: Split(rows=rows) for path, rows in _valid_rows(rowed).items()}
    real = inputs[0].shape[-1 - len(axes) : -1]
    stops = trace_cache.get_or_compute(
        ("stops", len(axes), *key),
        lambda: trace_strides(graph, state, inputs, split, splits, until),
    )
    for dim, axis in enumerate(axes):
        _check_block_rows(stops, dim, real[dim], axis, counts[dim])
    image = tuple(
        _block_rows(stops, dim, n) * n if n > 1 else real[dim]
        for dim, n in enumerate(counts)
    )
    laid = list(calls)
    for stop in stops:
        laid[stop.index] = _padded_call(stop, image, counts)
    return tuple(laid), BlockPadding(padded_rows=dict(zip(axes, image)), splits=splits)


def _is_even(call: LayerCall, counts: Sequence[int]) -> bool:
    """Tell whether a layer's rows lie on so many devices without padding."""
    if not is_windowed(call):
        return all(rows % n == 0 for rows, n in zip(call.shape[1:-1], counts))
    windows = call.layer.windows(call.shape[1:-1])
    return all(window.is_even(n) for window, n in zip(windows, counts))


def _valid_rows(calls: Sequence[LayerCall]) -> dict[str, Rows]:
    """Return the rows of each layer's input, by path; each layer has but one."""
    rows: dict[str, Rows] = {}
    for call in calls:
        here = call.shape[1:-1]
        if rows.setdefault(call.path, here) != here:
            raise BadInput(
                f"{call.path} is called on images of different sizes",
                rule="where rows do not divide, a layer's images have one size",
                values=f"{_format_rows(rows[call.path])} and {_format_rows(here)}",
                remedy="a layer for each size, or plan.mesh.data in place of the "
                "spatial axes",
            )
    return rows


def _check_block_rows(
    stops: Sequence[CallStrides], dim: int, rows: int, axis: str, devices: int
) -> None:
    """Refuse blocks so large that a device has no row of the image."""
    if devices == _nonempty_devices(stops, dim, rows, devices):
        return
    works = max(
        n for n in range(1, devices) if n == _nonempty_devices(stops, dim, rows, n)
    )
    stop = max(stops, key=lambda s: s.output_strides[dim])
    block = _block_rows(stops, dim, devices)
    raise BadInput(
        f"{axis} is too fine for the image",
        rule="every device holds rows of the image, in blocks of whole strides "
        "of the whole network",
        values=f"{rows} rows fill {_nonempty_devices(stops, dim, rows, devices)} "
        "blocks of "
        f"{block}, the stride behind {stop.call.path} is {stop.output_strides[dim]}, "
        f"plan.mesh.{axis} = {devices}",
        remedy=f"plan.mesh.{axis}={works}",
    )


def _nonempty_devices(
    stops: Sequence[CallStrides], dim: int, rows: int, devices: int
) -> int:
    """Count the devices that hold rows of the image."""
    return 1 if devices == 1 else -(-rows // _block_rows(stops, dim, devices))


def _block_rows(stops: Sequence[CallStrides], dim: int, devices: int) -> int:
    """Return the least rows of a block of the image that do at every layer."""
    arrays = [array for stop in stops for array in stop.arrays]
    total = math.lcm(*(strides[dim] for _, strides in arrays))
    least = max(rows[dim] * strides[dim] for rows, strides in arrays)
    return total * -(-least // (devices * total))


def _padded_call(stop: CallStrides, image: Rows, counts: Sequence[int]) -> LayerCall:
    """Return a call with the shapes its arrays have on the devices."""

    def lie(shape: Shape, strides: Rows) -> Shape:
        rows = (
            whole // stride if n > 1 else real
            for whole, stride, n, real in zip(image, strides, counts, shape[1:-1])
        )
        return (shape[0], *rows, shape[-1])

    call = stop.call
    behind = (
        lie(call.out_shape, stop.output_strides)
        if is_windowed(call)
        else call.out_shape
    )
    return replace(call, padded=lie(call.shape, stop.input_strides), out_padded=behind)


def _format_rows(rows: Rows) -> str:
    return " x ".join(map(str, rows))
