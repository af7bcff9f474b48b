"""The exchange: of every device's messages, one to each, as all-to-all brings them.

    short messages   all at once, as the backend likes
    long messages    on CPUs in rounds: in round k, device r sends to r + k, receives
                     from r - k; elsewhere as short ones

In a round each link carries one message each way. All at once they meet: on gloo three
messages to one host wait for each other while other links are idle, and an exchange
takes 1.5 times as long as its bytes need. Where there is an even number of devices the
devices of one round swap in pairs, both ways on one connection; gloo is as fast as the
link there for pieces of up to 64 KiB, and half as fast for more.
"""

from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.method import Axes, Payload, axis_rank, devices_along

SWAP_PIECE_BYTES: Final = 1 << 16
"""Bytes that are swapped at once; no more are a short message."""

PermutePairs = list[tuple[int, int]]


def all_to_all(messages: jax.Array, axes: Axes) -> jax.Array:
    """Send row r to device r, and return what all devices have sent to this one.

    Args:
        messages: unsigned integers [P, w].
        axes: manual axes of P devices, outermost first.

    Returns:
        [P, w]: this device's own message first; in what order the others come differs
        between devices.
    """
    devices, row = messages.shape
    if not _in_rounds(row * messages.dtype.itemsize):
        return lax.all_to_all(messages, axes, 0, 0)
    me, got = axis_rank(axes), []
    for k in range(devices):
        message = lax.dynamic_index_in_dim(messages, (me + k) % devices, keepdims=False)
        pairs = [(r, (r + k) % devices) for r in range(devices)]
        got.append(
            _moved(message, axes, pairs, swaps=2 * k == devices) if k else message
        )
    return jnp.stack(got)


def all_to_all_payload(message_bytes: int, sizes: Mapping[str, int]) -> Payload:
    """Return what an exchange brings to a device.

    Args:
        message_bytes: bytes of one.
        sizes: {axis: devices along it}, outermost first.
    """
    devices = devices_along(sizes)
    rounds = _in_rounds(message_bytes)
    return Payload(
        kind="collective-permute" if rounds else "all-to-all",
        axes=tuple(sizes),
        payload_bytes=message_bytes * (devices - 1 if rounds else devices),
    )


def _in_rounds(message: int) -> bool:
    """Tell whether messages of so many bytes are sent in rounds.

    Rounds are for gloo, the backend of CPUs: others have an exchange of their own.
    """
    return message > SWAP_PIECE_BYTES and jax.default_backend() == "cpu"


def _moved(
    message: jax.Array, axes: Axes, pairs: PermutePairs, *, swaps: bool
) -> jax.Array:
    """Make a round: whole, or where devices swap in pieces."""

    def move(x: jax.Array) -> jax.Array:
        return lax.ppermute(x, axes, pairs)

    if not swaps:
        return move(message)
    piece = SWAP_PIECE_BYTES // message.dtype.itemsize
    count, rest = divmod(message.size, piece)
    whole = message[: message.size - rest].reshape(count, piece)
    _, pieces = lax.scan(lambda last, x: (last, move(x)), None, whole)
    parts = [pieces.reshape(-1), *([move(message[-rest:])] if rest else [])]
    return jnp.concatenate(parts)
