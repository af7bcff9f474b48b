"""Strides: how many rows of the image one row of a layer stands for.

The product of the strides before it. Shapes alone do not tell: 75 rows can become 8 by
a stride of 8 or by windows without padding. So the network is traced once more on a
block of a split image, where a window of stride s makes b / s rows of b whatever its
padding, and the shapes of that trace are read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.core.axes import spatial_axes
from jaxdist.core.errors import BadInput
from jaxdist.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Gather,
    GlobalMean,
    GridMean,
    bind,
)
from jaxdist.layers.halo import Rows, Split
from jaxdist.layers.pool import Pool
from jaxdist.profile.layer_calls import LayerCall, trace_calls


@dataclass(frozen=True, kw_only=True)
class CallStrides:
    """One call of a layer that depends on where rows are."""

    index: int
    """Which of the network's calls it is."""
    call: LayerCall
    """The call, on the whole image."""
    input_strides: Rows
    """Rows of the image that a row of its input stands for, along each dim."""
    output_strides: Rows
    """The same of its output, where that has rows."""

    @property
    def arrays(self) -> tuple[tuple[Rows, Rows], ...]:
        """Real rows and strides of its input, and of a window's output."""
        ends = [(self.call.shape, self.input_strides)]
        if is_windowed(self.call):
            ends.append((self.call.out_shape, self.output_strides))
        return tuple((shape[1:-1], strides) for shape, strides in ends)


def is_windowed(call: LayerCall) -> bool:
    """Tell whether a call passes a window over rows."""
    return isinstance(call.layer, Conv | Pool)


def is_spatial(call: LayerCall) -> bool:
    """Tell whether a layer depends on where the rows of its input are."""
    kinds = Conv | Pool | BatchNorm | Dropout | Gather | GlobalMean | GridMean
    return isinstance(call.layer, kinds) and bool(spatial_axes(len(call.shape)))


def trace_strides(
    graph: nnx.GraphDef[nnx.Module],
    state: Sequence[Any],
    inputs: Sequence[jax.ShapeDtypeStruct],
    calls: Sequence[LayerCall],
    splits: Mapping[str, Split],
    gather_block: str,
) -> tuple[CallStrides, ...]:
    """Read the strides of a network's calls.

    Args:
        graph: the network's structure.
        state: shapes of its parameters and statistics.
        inputs: shapes of what it is called on.
        calls: its calls on them, as far as images are split.
        splits: how the images of its layers are cut.
        gather_block: block before which images are gathered; empty for none.

    Raises:
        BadInput: branches of different strides meet.
    """
    dims = next(len(call.shape) - 2 for call in calls if is_spatial(call))
    images, *others = inputs
    real = images.shape[-1 - dims : -1]
    block = tuple(_stride_multiple(calls, dim, n) for dim, n in enumerate(real))
    shape = (*images.shape[: -1 - dims], *block, images.shape[-1])
    try:
        blocks = trace_calls(
            graph,
            state,
            jax.ShapeDtypeStruct(shape, images.dtype),
            *others,
            prepare=lambda network: bind(
                network, splits=splits, gather_block=gather_block
            ),
            wrap=_on_two_devices(dims),
        )
    except TypeError as error:
        raise BadInput(
            "the network cannot be split along spatial axes",
            rule="branches that meet have the same strides",
            values=str(error).splitlines()[0],
            remedy="plan.mesh.data in place of the spatial axes",
        ) from error
    return tuple(
        CallStrides(
            index=index,
            call=call,
            input_strides=_stride_ratio(block, part.shape),
            output_strides=_stride_ratio(
                block, part.out_shape if is_windowed(call) else part.shape
            ),
        )
        for index, (call, part) in enumerate(zip(calls, blocks))
        if is_spatial(call)
    )


def _stride_multiple(calls: Sequence[LayerCall], dim: int, rows: int) -> int:
    """Return a number of rows, twice the image's or more, that every stride divides."""
    strides = math.prod(
        call.layer.windows(call.shape[1:-1])[dim].stride
        for call in calls
        if is_spatial(call) and is_windowed(call)
    )
    return strides * -(-2 * rows // strides)


def _on_two_devices(dims: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a function as on one of two devices along each of so many spatial dims."""
    axes = spatial_axes(dims + 2)
    mesh = AbstractMesh((2,) * dims, axes, axis_types=(AxisType.Auto,) * dims)
    return lambda run: jax.shard_map(
        run, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )


def _stride_ratio(image: Rows, shape: Sequence[int]) -> Rows:
    return tuple(whole // rows for whole, rows in zip(image, shape[1:-1]))
