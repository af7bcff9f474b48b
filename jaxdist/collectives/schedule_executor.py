"""Execution of a collective schedule: a sum over ranks, by permutes.

One program runs on all devices. Which chunks a rank sends and where it puts those that
it receives is looked up by its rank on the axis. Steps that differ in these indices
alone run as one loop: a ring has as many instructions for 64 ranks as for 4.
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


def run_schedule(
    schedule: CollectiveSchedule, x: jax.Array, axis: AxisNames
) -> jax.Array:
    """Sum an array over manual mesh axes by a schedule.

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
        if x.size == 0:
            return x
        each = chunk_size(schedule, x.size)
        padding = each * schedule.chunks - x.size
        chunks = jnp.pad(x.reshape(-1), (0, padding)).reshape(schedule.chunks, each)
        with jax.named_scope(schedule.name):
            for _, alike in itertools.groupby(permutes(schedule), _message_shapes):
                chunks = _run_alike(list(alike), chunks, axis)
        return chunks.reshape(-1)[: x.size].reshape(x.shape)

    # The transpose of an all-reduce that is the same everywhere is the all-reduce
    # itself.
    total.defvjp(lambda x: (total(x), None), lambda _, share: (total(share),))
    # An array that is the same on all ranks has to pass for one that differs.
    axes = (axis,) if isinstance(axis, str) else axis
    same = tuple(name for name in axes if name not in jax.typeof(x).mat.varying)
    return total(lax.pcast(x, same, to="varying") if same else x)


def _message_shapes(step: PermuteStep) -> tuple[object, ...]:
    return tuple((p.pairs, p.count, p.adds) for p in step)


def _run_alike(
    steps: list[PermuteStep], chunks: jax.Array, axis: AxisNames
) -> jax.Array:
    """Run steps that differ in the indices of their chunks alone, as one loop."""
    # [steps, permutes, (send, receive), ranks]: the first chunk that each rank sends,
    # and the first that it receives.
    ranks = int(lax.axis_size(axis))
    table = np.zeros((len(steps), len(steps[0]), 2, ranks), int)
    for rows, permute_step in zip(table, steps):
        for (sends, receives), permute in zip(rows, permute_step):
            for (source, target), start in zip(permute.pairs, permute.starts):
                sends[source] = receives[target] = start
    mine = jnp.asarray(table, jnp.int32)[..., lax.axis_index(axis)]

    def step(chunks: jax.Array, places: jax.Array) -> tuple[jax.Array, None]:
        # One behind another: if all messages were read first, XLA would keep whole
        # copies of the array (docs/adr/0023).
        for permute, place in zip(steps[0], places):
            # Neighbouring chunks move as one slice, in place.
            sent = lax.dynamic_slice_in_dim(chunks, place[0], permute.count)
            got = _permute(sent, permute, axis)
            own = lax.dynamic_slice_in_dim(chunks, place[1], permute.count)
            new = _received(permute, own, got, axis)
            chunks = lax.dynamic_update_slice_in_dim(chunks, new, place[1], 0)
        return chunks, None

    return lax.scan(step, chunks, mine)[0]


def _permute(message: jax.Array, permute: Permute, axis: AxisNames) -> jax.Array:
    # Floats of 8 and 16 bits are moved as bits: some backends would widen them.
    if not _is_narrow(message.dtype):
        return lax.ppermute(message, axis, permute.pairs)
    bits = jnp.uint8 if message.dtype.itemsize == 1 else jnp.uint16
    sent = lax.bitcast_convert_type(message, bits)
    got = lax.ppermute(sent, axis, permute.pairs)
    return lax.bitcast_convert_type(got, message.dtype)


def _received(
    permute: Permute, own: jax.Array, got: jax.Array, axis: AxisNames
) -> jax.Array:
    """Return the chunks at the target; a rank without a message keeps its own."""
    new = got
    if permute.adds and _is_narrow(own.dtype):
        # Each addition is made in float32 and rounded.
        full = accumulation_dtype(own.dtype)
        new = (own.astype(full) + got.astype(full)).astype(own.dtype)
    elif permute.adds:
        new = own + got
    # `ppermute` gives zeros to a rank that nobody sends to.
    targets = np.zeros(lax.axis_size(axis), bool)
    targets[[target for _, target in permute.pairs]] = True
    if targets.all():
        return new
    return jnp.where(jnp.asarray(targets)[lax.axis_index(axis)], new, own)


def _is_narrow(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _check(algorithm: CollectiveSchedule, x: jax.Array, axis: AxisNames) -> None:
    # JAX raises a NameError where an axis is not manual here.
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
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return
    bits = 0
    if jnp.issubdtype(dtype, jnp.floating):
        bits = jnp.finfo(dtype).bits
    elif jnp.issubdtype(dtype, jnp.integer):
        bits = jnp.iinfo(dtype).bits
    if bits < 8:
        raise BadInput(
            f"arrays of {dtype} cannot be summed by a step list",
            rule="floats, complex numbers, or integers, of at least 8 bits",
            values=f"dtype={dtype}",
            remedy="x.astype(jnp.int32)",
        )
