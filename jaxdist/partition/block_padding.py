"""Block padding: how many rows the blocks of split images have, and how many are real.

At every layer a block holds whole strides: each layer then makes a row of a stride of
rows, and nothing is computed twice. So an image of N rows on n devices lies, from the
start, in blocks of

    b = S k,    k the least with  n b / s >= N_s  at every layer,

where S is the stride of the whole network, s the cumulative stride up to a layer and
N_s the rows that the layer really has. Rows from N_s on are padding
(`jaxdist.layers.valid_rows`). Where blocks of N / n rows do already, nothing is padded
and no layer is told anything.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.core.axes import spatial_axes
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import (
    BatchNorm,
    Conv,
    ConvTranspose,
    Dropout,
    Gather,
    GlobalMean,
    GridMean,
    GroupNorm,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
    bind,
)
from jaxdist.layers.halo import Rows, Split
from jaxdist.layers.pool import Pool
from jaxdist.partition import spatial_layers
from jaxdist.profile.layer_calls import LayerCall, trace_calls
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace import TraceCache

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BlockPadding:
    """How images are padded and cut; empty where shapes alone say it."""

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


def fit_block_padding(
    plan: Plan,
    graph: nnx.GraphDef[nnx.Module],
    state: Sequence[Any],
    *inputs: jax.ShapeDtypeStruct,
    trace_cache: TraceCache | None = None,
    repeated_blocks: RepeatedBlocks | None = None,
) -> tuple[tuple[LayerCall, ...], BlockPadding]:
    """Trace a network's layer calls and size the blocks of its arrays.

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
        how images are padded.

    Raises:
        BadInput: a device would have no row of the image, a layer is called on images
            of different sizes, branches of different strides meet, or the split cannot
            end where the plan says.
    """
    # Traces depend on where images are gathered and on the inputs, not on the mesh: one
    # serves all layouts of a search.
    until, gather = plan.spatial_end, spatial_layers.gather_layer_class(plan)
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
        )[0],
    )
    split, whole = spatial_layers.split_at_gather(calls, until)
    # Layers behind the gather see whole images, whatever axes are manual there.
    behind = spatial_layers.split_after_gather(plan)
    splits = dict.fromkeys((call.path for call in whole), behind)
    spatial = [call for call in split if is_spatial(call)]
    axes = spatial_axes(len(spatial[0].shape)) if spatial else ()
    counts = tuple(plan.mesh.size(axis) for axis in axes)

    # Without padding: every layer has as many rows, of whole strides, on each device.
    even = [
        all(w.is_even(n) for w, n in zip(call.layer.windows(call.shape[1:-1]), counts))
        if is_windowed(call)
        else all(total % n == 0 for total, n in zip(call.shape[1:-1], counts))
        for call in spatial
    ]
    if all(even):
        return calls, BlockPadding(splits=splits)

    # A layer is told its real rows once, by its path, so each has images of one size.
    rows: dict[str, Rows] = {}
    for call in spatial:
        here = call.shape[1:-1]
        if rows.setdefault(call.path, here) != here:
            sizes = (" x ".join(map(str, size)) for size in (rows[call.path], here))
            raise BadInput(
                f"{call.path} is called on images of different sizes",
                rule="where rows do not divide, a layer's images have one size",
                values=" and ".join(sizes),
                remedy="a layer for each size, or plan.mesh.data in place of the "
                "spatial axes",
            )
    splits |= {path: Split(rows=size) for path, size in rows.items()}
    stops = trace_cache.get_or_compute(
        ("stops", len(axes), *key),
        lambda: trace_strides(graph, state, inputs, split, splits, until),
    )
    image = list(inputs[0].shape[-1 - len(axes) : -1])
    for dim, (axis, devices) in enumerate(zip(axes, counts)):
        # A dim that is not split keeps its real rows, even ones that no stride divides.
        if devices > 1:
            _check_block_rows(stops, dim, image[dim], axis, devices)
            image[dim] = _block_rows(stops, dim, devices) * devices

    padded = list(calls)
    for stop in stops:
        ends = []
        for shape, strides in (
            (stop.call.shape, stop.input_strides),
            (stop.call.out_shape, stop.output_strides),
        ):
            # Rows on the devices: those of the padded image over the cumulative stride.
            lies = (
                int(total / stride) if n > 1 else real
                for total, stride, n, real in zip(image, strides, counts, shape[1:-1])
            )
            ends.append((shape[0], *lies, shape[-1]))
        # Layers without windows return as many rows as they get, or none.
        if not is_windowed(stop.call):
            ends[1] = stop.call.out_shape
        padded[stop.index] = replace(stop.call, padded=ends[0], out_padded=ends[1])
    return tuple(padded), BlockPadding(
        padded_rows=dict(zip(axes, image)), splits=splits
    )


@dataclass(frozen=True, kw_only=True)
class CallStrides:
    """The cumulative strides at one call of a layer that depends on where rows are."""

    index: int
    """Which of the network's calls it is."""
    call: LayerCall
    """The call, on the whole image."""
    input_strides: tuple[Fraction, ...]
    """Rows of the image that a row of its input stands for, along each dim; below 1
    where an image is upsampled to more rows than it had.
    """
    output_strides: tuple[Fraction, ...]
    """The same of its output, where that has rows."""


def is_windowed(call: LayerCall) -> bool:
    """Tell whether a call passes a window over rows, of its input or its output."""
    shuffles = PixelShuffle | PixelUnshuffle
    return isinstance(call.layer, Conv | Pool | ConvTranspose | Upsample | shuffles)


def is_spatial(call: LayerCall) -> bool:
    """Tell whether a layer depends on where the rows of its input are."""
    norms, means = BatchNorm | GroupNorm, Gather | GlobalMean | GridMean
    is_bound = isinstance(call.layer, norms | Dropout | means) or is_windowed(call)
    return is_bound and bool(spatial_axes(len(call.shape)))


def trace_strides(
    graph: nnx.GraphDef[nnx.Module],
    state: Sequence[Any],
    inputs: Sequence[jax.ShapeDtypeStruct],
    calls: Sequence[LayerCall],
    splits: Mapping[str, Split],
    gather_block: str,
) -> tuple[CallStrides, ...]:
    """Read the cumulative strides of a network's calls.

    Shapes alone do not tell: 75 rows can become 8 by a stride of 8 or by windows
    without padding. So the network is traced once more on a block of a split image,
    where a window of stride s makes b / s rows of b whatever its padding.

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
    # The block: rows that the product of all strides divides, as long as the image or
    # longer on each of two devices, so that no halo reaches past a neighbour.
    windows = [
        call.layer.windows(call.shape[1:-1])
        for call in calls
        if is_spatial(call) and is_windowed(call)
    ]
    strides = [math.prod(each[dim].stride for each in windows) for dim in range(dims)]
    real = images.shape[-1 - dims : -1]
    block = tuple(s * -(-2 * rows // s) for rows, s in zip(real, strides))
    shape = (*images.shape[: -1 - dims], *block, images.shape[-1])
    mesh = AbstractMesh(
        (2,) * dims, spatial_axes(dims + 2), axis_types=(AxisType.Auto,) * dims
    )
    try:
        blocks, _ = trace_calls(
            graph,
            state,
            jax.ShapeDtypeStruct(shape, images.dtype),
            *others,
            prepare=lambda network: bind(
                network, splits=splits, gather_block=gather_block
            ),
            wrap=lambda run: jax.shard_map(
                run, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
            ),
        )
    except TypeError as error:
        # JAX adds no arrays of different shapes: the branches of a residual block.
        raise BadInput(
            "the network cannot be split along spatial axes",
            rule="branches that meet have the same strides",
            values=str(error).splitlines()[0],
            remedy="plan.mesh.data in place of the spatial axes",
        ) from error
    # Rows of the block over rows of each array in it are the stride so far, exactly:
    # blocks hold whole strides, so padding of windows adds no rows.
    found = []
    for index, (call, part) in enumerate(zip(calls, blocks)):
        if is_spatial(call):
            out = part.out_shape if is_windowed(call) else part.shape
            found.append(
                CallStrides(
                    index=index,
                    call=call,
                    input_strides=tuple(map(Fraction, block, part.shape[1:-1])),
                    output_strides=tuple(map(Fraction, block, out[1:-1])),
                )
            )
    return tuple(found)


def _block_rows(stops: Sequence[CallStrides], dim: int, devices: int) -> int:
    """Return the least rows of a block of the image that suffice at every layer."""
    arrays = [(stop.call.shape, stop.input_strides) for stop in stops]
    arrays += [
        (stop.call.out_shape, stop.output_strides)
        for stop in stops
        if is_windowed(stop.call)
    ]
    # Whole strides at every layer at once, and n blocks that cover the rows that each
    # layer really has: both hold for multiples of the least common stride.
    total = math.lcm(*(strides[dim].numerator for _, strides in arrays))
    least = max(math.ceil(shape[1 + dim] * strides[dim]) for shape, strides in arrays)
    return total * -(-least // (devices * total))


def _check_block_rows(
    stops: Sequence[CallStrides], dim: int, rows: int, axis: str, devices: int
) -> None:
    """Refuse blocks so large that a device has no row of the image."""
    block = _block_rows(stops, dim, devices)
    filled = -(-rows // block)
    if filled == devices:
        return
    sizes = ((n, _block_rows(stops, dim, n)) for n in range(2, devices))
    # The most devices below this number that each hold real rows; one always does.
    works = max((n for n, size in sizes if -(-rows // size) == n), default=1)
    stop = max(stops, key=lambda s: s.output_strides[dim])
    raise BadInput(
        f"{axis} is too fine for the image",
        rule="every device holds rows of the image, in blocks of whole strides "
        "of the whole network",
        values=f"{rows} rows fill {filled} blocks of {block}, the stride behind "
        f"{stop.call.path} is {stop.output_strides[dim]}, plan.mesh.{axis} = {devices}",
        remedy=f"plan.mesh.{axis}={works}",
    )
