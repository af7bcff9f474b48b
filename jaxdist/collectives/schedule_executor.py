"""Execution of a step list over named axes: a sum over ranks, by permutes.

One program runs on all devices. Which chunks a rank sends and where it puts those that
it receives is looked up by its place on the axis. Neighbouring chunks move as one
slice, in place. Steps that differ in these places alone run as one loop: a ring has as
many instructions for 64 ranks as for 4.

Floats of 8 and 16 bits are moved as bits, since some backends would widen them on the
way. Each addition of theirs is made in float32 and rounded.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.permutes import Permute, PermuteStep, permutes
from jaxdist.collectives.schedule_traffic import chunk_size
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput

AxisNames = str | tuple[str, ...]


def run(schedule: CollectiveSchedule, x: jax.Array, axis: AxisNames) -> jax.Array:
    """Sum an array over manual mesh axes by a step list.

    y = Σ_r x_r on every rank, all with the same bits. As of `lax.psum` under
    `check_vma=False`, the gradient is the sum of the gradients of all ranks, and it is
    summed by the same steps.

    Args:
        schedule: as many ranks as the axes have devices; rank r is the device with
            `lax.axis_index(axis)` r.
        x: this device's array, of any shape; floats, complex numbers or integers of at
            least 8 bits. Integers wrap.
        axis: one axis, or several, outermost first.

    Raises:
        BadInput: another number of devices, an axis that is not manual here, or a dtype
            that cannot be summed.
    """
    _check(schedule, x, axis)

    @jax.custom_vjp
    def total(x: jax.Array) -> jax.Array:
        return _summed(schedule, x, axis)

    total.defvjp(lambda x: (total(x), None), lambda _, share: (total(share),))
    return total(_varying(x, axis))


def _summed(algorithm: CollectiveSchedule, x: jax.Array, axis: AxisNames) -> jax.Array:
    if x.size == 0:
        return x
    each = chunk_size(algorithm, x.size)
    padding = each * algorithm.chunks - x.size
    flat = jnp.pad(x.reshape(-1), (0, padding))
    chunks = flat.reshape(algorithm.chunks, each)
    with jax.named_scope(algorithm.name):
        for _, alike in itertools.groupby(permutes(algorithm), _shape):
            chunks = _run(list(alike), chunks, axis)
    return chunks.reshape(-1)[: x.size].reshape(x.shape)


def _run(steps: list[PermuteStep], chunks: jax.Array, axis: AxisNames) -> jax.Array:
    """Run steps that differ in the places of their chunks alone."""
    ranks = int(lax.axis_size(axis))
    table = np.array([[_places(p, ranks) for p in step] for step in steps])
    mine = jnp.asarray(table, jnp.int32)[..., lax.axis_index(axis)]

    def step(chunks: jax.Array, places: jax.Array) -> tuple[jax.Array, None]:
        for permute, place in zip(steps[0], places):
            got = _moved(_slice(chunks, place[0], permute.count), permute, axis)
            own = _slice(chunks, place[1], permute.count)
            new = _received(permute, own, got, axis)
            chunks = lax.dynamic_update_slice_in_dim(chunks, new, place[1], 0)
        return chunks, None

    return lax.scan(step, chunks, mine)[0]


def _shape(step: PermuteStep) -> tuple[object, ...]:
    return tuple((p.pairs, p.count, p.adds) for p in step)


def _places(permute: Permute, ranks: int) -> list[list[int]]:
    """Tabulate by rank the first chunk that it sends, and the first it receives."""
    sends, receives = [0] * ranks, [0] * ranks
    for (source, target), start in zip(permute.pairs, permute.starts):
        sends[source] = receives[target] = start
    return [sends, receives]


def _slice(chunks: jax.Array, start: jax.Array, count: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(chunks, start, count)


def _moved(message: jax.Array, permute: Permute, axis: AxisNames) -> jax.Array:
    if not _is_narrow(message.dtype):
        return lax.ppermute(message, axis, permute.pairs)
    bits = jnp.uint8 if message.dtype.itemsize == 1 else jnp.uint16
    sent = lax.bitcast_convert_type(message, bits)
    got = lax.ppermute(sent, axis, permute.pairs)
    return lax.bitcast_convert_type(got, message.dtype)


def _received(
    permute: Permute, own: jax.Array, got: jax.Array, axis: AxisNames
) -> jax.Array:
    """Return what is where a message goes to; a rank without one keeps its own."""
    new = _added(own, got) if permute.adds else got
    targets = np.zeros(lax.axis_size(axis), bool)
    targets[[target for _, target in permute.pairs]] = True
    if targets.all():
        return new
    return jnp.where(jnp.asarray(targets)[lax.axis_index(axis)], new, own)


def _added(own: jax.Array, got: jax.Array) -> jax.Array:
    if not _is_narrow(own.dtype):
        return own + got
    full = accumulation_dtype(own.dtype)
    return (own.astype(full) + got.astype(full)).astype(own.dtype)


def _is_narrow(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _varying(x: jax.Array, axis: AxisNames) -> jax.Array:
    """Let an array that is the same on all ranks pass for one that differs."""
    axes = (axis,) if isinstance(axis, str) else axis
    same = tuple(name for name in axes if name not in jax.typeof(x).mat.varying)
    return lax.pcast(x, same, to="varying") if same else x


def _check(algorithm: CollectiveSchedule, x: jax.Array, axis: AxisNames) -> None:
    try:
        devices = lax.axis_size(axis)
    except NameError as error:
        raise BadInput(
            f"no manual axis {axis!r} here",
            rule="a step list runs inside jax.shard_map, over its axes",
            values=str(error),
            remedy="jax.shard_map(..., mesh=a mesh with this axis)",
        ) from error
    if devices != algorithm.ranks:
        raise BadInput(
            f"{algorithm.name} for {algorithm.ranks} ranks cannot run on {devices}",
            rule="as many ranks as devices along the axes",
            values=f"axis={axis!r}, devices={devices}, ranks={algorithm.ranks}",
            remedy=f"{algorithm.name}({devices})",
        )
    if not _is_summable(x.dtype):
        raise BadInput(
            f"arrays of {x.dtype} cannot be summed by a step list",
            rule="floats, complex numbers, or integers, of at least 8 bits",
            values=f"dtype={x.dtype}",
            remedy="x.astype(jnp.int32)",
        )


def _is_summable(dtype: np.dtype) -> bool:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return True
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits >= 8
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 8
