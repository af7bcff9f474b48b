"""All-to-all exchange of messages, one from every device to each.

short messages   all at once, by the backend's all-to-all
long messages    on CPUs in rounds: in round k, device r sends to r + k, receives
                 from r - k; elsewhere as short ones
"""

from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.method import Axes, Payload, axis_rank, devices_along

SWAP_PIECE_BYTES: Final = 1 << 16
"""Bytes that are swapped at once, and the longest short message."""


def all_to_all(messages: jax.Array, axes: Axes) -> jax.Array:
    """Send row r to device r, and return what all devices have sent to this one.

    Args:
        messages: unsigned integers [P, w].
        axes: manual axes of P devices, outermost first.

    Returns:
        [P, w]: this device's own message first; the order of the others differs
        between devices.
    """
    devices, row = messages.shape
    if not _in_rounds(row * messages.dtype.itemsize):
        return lax.all_to_all(messages, axes, 0, 0)
    me, got = axis_rank(axes), []
    for k in range(devices):
        message = lax.dynamic_index_in_dim(messages, (me + k) % devices, keepdims=False)
        pairs = [(r, (r + k) % devices) for r in range(devices)]
        if 2 * k == devices:
            message = _swap(message, axes, pairs)
        elif k:
            message = lax.ppermute(message, axes, pairs)
        got.append(message)
    return jnp.stack(got)


def _swap(message: jax.Array, axes: Axes, pairs: list[tuple[int, int]]) -> jax.Array:
    """Permute a message piece by piece."""
    # Of an even number, the devices of one round swap in pairs, both ways on one
    # connection. There gloo is as fast as the link for pieces of up to 64 KiB, and half
    # as fast for more.
    piece = SWAP_PIECE_BYTES // message.dtype.itemsize
    count, rest = divmod(message.size, piece)
    whole = message[: message.size - rest].reshape(count, piece)
    _, pieces = lax.scan(
        lambda last, x: (last, lax.ppermute(x, axes, pairs)), None, whole
    )
    if not rest:
        return pieces.reshape(-1)
    end = lax.ppermute(message[-rest:], axes, pairs)
    return jnp.concatenate([pieces.reshape(-1), end])


def all_to_all_payload(message_bytes: int, sizes: Mapping[str, int]) -> Payload:
    """Return the result of an exchange on a device.

    Args:
        message_bytes: bytes of one message.
        sizes: {axis: devices along it}, outermost first.
    """
    devices = devices_along(sizes)
    # In rounds a device keeps its own message and receives the others.
    rounds = _in_rounds(message_bytes)
    return Payload(
        kind="collective-permute" if rounds else "all-to-all",
        axes=tuple(sizes),
        payload_bytes=message_bytes * (devices - 1 if rounds else devices),
    )


def _in_rounds(message_bytes: int) -> bool:
    # In a round each link carries one message each way. All at once they meet: on gloo
    # three messages to one host wait for each other while other links are idle, and an
    # exchange takes 1.5 times as long as its bytes need. Other backends than gloo, that
    # of CPUs, have an exchange of their own.
    return message_bytes > SWAP_PIECE_BYTES and jax.default_backend() == "cpu"
