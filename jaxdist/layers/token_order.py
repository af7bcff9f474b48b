"""The order of tokens on the devices along the context axis: zig-zag.

Of n devices the tokens of a sample are 2 n chunks, and device i has chunks i and
2 n - 1 - i. A causal token reads those before it, so chunk i has i + 1 chunks to read:
with a chunk from both ends every device has 2 n + 1 (Grattafiori et al. 2024,
arXiv:2407.21783, section 3.3.2).

Everything else treats each token by itself, and asks here for its position.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.sharded_leaves import all_gather_array
from jaxdist.core.axes import CONTEXT_AXIS
from jaxdist.layers.manual_axes import manual_axis_sizes


def context_devices() -> int:
    """Return the number of devices that share the tokens of a sample here."""
    return manual_axis_sizes().get(CONTEXT_AXIS, 1)


def global_position(local: jax.Array, count: int) -> jax.Array:
    """Return the positions in whole samples of this device's tokens.

    Args:
        local: int32, their indices among this device's.
        count: of this device's tokens.
    """
    devices, chunk = context_devices(), count // 2
    if devices == 1:
        return local
    place = lax.axis_index(CONTEXT_AXIS).astype(local.dtype)
    # This device's tokens are chunk i, and behind it chunk 2 n - 1 - i.
    first = local < chunk
    chunks = jnp.where(first, place, 2 * devices - 1 - place)
    return chunks * chunk + jnp.where(first, local, local - chunk)


def token_positions(count: int) -> jax.Array:
    """Return the position of each of this device's tokens, int32 [count]."""
    return global_position(jnp.arange(count, dtype=jnp.int32), count)


def local_tokens(x: jax.Array, dim: int, place: jax.Array | None = None) -> jax.Array:
    """Slice a device's tokens out of an array that has those of whole samples.

    Args:
        x: any dtype.
        dim: the dim of tokens.
        place: of the device along the axis, int32 []; None: of this one.
    """
    devices = context_devices()
    if devices == 1:
        return x
    chunk = x.shape[dim] // (2 * devices)
    place = lax.axis_index(CONTEXT_AXIS) if place is None else place
    chunks = (place, 2 * devices - 1 - place)
    parts = [lax.dynamic_slice_in_dim(x, i * chunk, chunk, dim) for i in chunks]
    return jnp.concatenate(parts, dim)


def gather_whole_tokens(x: jax.Array) -> jax.Array:
    """All-gather `[B, T / n, ...]`, cut in order as a batch is, to `[B, T, ...]`."""
    # A batch is dealt out in order; the zig-zag is cut from whole samples behind this.
    return all_gather_array(x, CONTEXT_AXIS, 1)


def in_order(x: jax.Array, dim: int) -> jax.Array:
    """Return the tokens of all devices in order.

    Args:
        x: any dtype, the devices' tokens one device after the other.
        dim: the dim of tokens.
    """
    order = _chunk_order()
    return _permute_chunks(x, dim, [order.index(i) for i in range(len(order))])


def by_device(x: jax.Array, dim: int) -> jax.Array:
    """Undo `in_order`."""
    return _permute_chunks(x, dim, _chunk_order())


def _chunk_order() -> list[int]:
    devices = context_devices()
    # 0, 2 n - 1, 1, 2 n - 2, ...: the chunks of all devices, one device after the
    # other.
    return [i for k in range(devices) for i in (k, 2 * devices - 1 - k)]


def _permute_chunks(x: jax.Array, dim: int, order: list[int]) -> jax.Array:
    chunks = jnp.split(x, len(order), dim)
    return jnp.concatenate([chunks[i] for i in order], dim)
