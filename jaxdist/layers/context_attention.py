"""Causal attention of tokens that several devices share, along the context axis.

    all_gather  each device has all keys and values (Grattafiori et al. 2024,
                arXiv:2407.21783, section 3.3.2)
    ring        it has those of one device at a time, which go round while it works on
                the ones before (Liu et al. 2023, arXiv:2310.01889)
    all_to_all  it has some heads of all tokens (Jacobs et al. 2023, arXiv:2309.14509)

The first two work on pairs of a device's queries and another's keys, each one block of
the kernel of `jaxdist.layers.fused_attention`. With m and l the result and the
logarithm of the sum of exponentials (lse) of two blocks,

    lse = log(e^l1 + e^l2)      out = m1 e^(l1 - lse) + m2 e^(l2 - lse).

Devices have chunks i and 2 n - 1 - i of 2 n (`jaxdist.layers.token_order`). Of the keys
of device j two products of a chunk with a chunk are seen, wholly, whatever i and j are:

    queries of the second chunk, keys of the first        in any case
    queries of the first chunk, keys of the first         where j < i
    queries of the second chunk, keys of the second       where j > i

so that all devices do the same work in every turn. Their own tokens are a causal block,
since positions grow along them.

Of windows of several documents each device knows the segments of all tokens, and no
block lets a query see keys of another document. A query that sees none of a block has
lse = -inf there, and adds nothing.

The backward pass gathers or sends keys and values once more: kept, they would be as
many as all devices have.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.sharded_leaves import all_gather_array, reduce_scatter_array
from jaxdist.core.axes import CONTEXT_AXIS
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.all_gather_slices import all_to_all_dims
from jaxdist.layers.fused_attention import (
    Attend,
    attention_forward,
    attention_gradient,
)
from jaxdist.layers.token_order import by_device, in_order, local_tokens

_TOKENS, _HEADS = 1, 2
"""Dims of queries, keys and values."""

Turn = Callable[[Any, jax.Array, jax.Array], tuple[Any, Any]]
"""Maps a state, keys and values of another device, and its index, to the state behind
and what is added for that device."""


class _Results(NamedTuple):
    """Results of some queries over some keys."""

    out: jax.Array
    """[B, T, heads, D]."""
    lse: jax.Array
    """[B, heads, T]."""

    def join(self, other: Self, where: jax.Array | bool = True) -> "_Results":
        """Return the results over the keys of both, where a condition holds."""
        # A block that is not seen weighs exp(-inf) = 0: all devices run one program, so
        # there is no branch. `self.lse` is finite, since each token has read itself.
        found = jnp.where(where, other.lse, -jnp.inf)
        lse = jnp.logaddexp(self.lse, found)
        own, new = (
            jnp.exp(x - lse).swapaxes(1, 2)[..., None] for x in (self.lse, found)
        )
        more = other.out.astype(self.out.dtype) * new
        return _Results(self.out * own + more, lse)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def blockwise_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None,
    ring: bool,
    fused: bool,
) -> tuple[jax.Array, jax.Array]:
    """Attend causally to the tokens of all devices along the context axis.

    Args:
        query: [B, T / n, heads, D], this device's tokens.
        key: [B, T / n, kv_heads, D].
        value: as `key`.
        segments: int32 [B, T], the document of each token of whole samples; None: a
            sample is one document.
        ring: whether keys and values go round, and are not gathered.
        fused: whether by the kernel of the platform, and not written out.

    Returns:
        [B, T / n, heads, D], in the dtype of `value`; and lse [B, heads, T / n], which
        has no gradient.
    """
    alike = _segments_of(segments, None)
    out, lse = attention_forward(query, key, value, *alike, fused=fused)
    # Blocks are joined in float32 or wider, and rounded once behind the last.
    out = out.astype(accumulation_dtype(out.dtype))
    first, second = (
        _Results(x, y)
        for x, y in zip(jnp.split(out, 2, _TOKENS), jnp.split(lse, 2, -1), strict=True)
    )

    def turn(state: Any, pair: jax.Array, place: jax.Array) -> tuple[Any, None]:
        first, second = state
        is_before = place < lax.axis_index(CONTEXT_AXIS)
        k, v = (_key_blocks(x, is_before) for x in jnp.split(pair, 2, _HEADS))
        # Both products as samples of one call: [2 B, T / 2 n, heads, D].
        q = _query_blocks(query, is_before)
        ids = _block_segments(segments, place, is_before)
        found = attention_forward(q, k, v, *ids, causal=False, fused=fused)
        one, other = (
            _Results(x, y)
            for x, y in zip(*(jnp.split(x, 2) for x in found), strict=True)
        )
        first = first.join(other, is_before)
        return (first, second.join(one).join(other, ~is_before)), None

    pair = jnp.concatenate([key, value], _HEADS)
    (first, second), _ = _visit_others(turn, (first, second), None, pair, ring)
    out = jnp.concatenate([first.out, second.out], _TOKENS).astype(value.dtype)
    return out, jnp.concatenate([first.lse, second.lse], -1)


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None,
    ring: bool,
    fused: bool,
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    # By its own name in the trace, so that a checkpoint keeps results as they are.
    out, lse = blockwise_attention(query, key, value, segments, ring, fused)
    return (out, lse), (query, key, value, out, lse, segments)


def _backward(
    ring: bool, fused: bool, kept: Any, cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array | None, ...]:
    *arrays, segments = kept
    query, key, value, out, lse = arrays
    cotangent, _ = cotangents
    alike = _segments_of(segments, None)
    own = attention_gradient(*arrays, cotangent, *alike, fused=fused)
    dq, dk, dv = (x.astype(accumulation_dtype(x.dtype)) for x in own)

    def turn(dq: jax.Array, pair: jax.Array, place: jax.Array) -> tuple[Any, jax.Array]:
        is_before = place < lax.axis_index(CONTEXT_AXIS)
        v, k = (_key_blocks(x, is_before) for x in jnp.split(pair, 2, _HEADS))
        q, read, pulled = (_query_blocks(x, is_before) for x in (query, out, cotangent))
        summed = _query_blocks(lse, is_before, -1)
        ids = _block_segments(segments, place, is_before)
        # Of the result and lse over all keys, so that softmax shares are those of the
        # whole.
        found = attention_gradient(
            q, k, v, read, summed, pulled, *ids, causal=False, fused=fused
        )
        more, *both = (x.astype(dq.dtype) for x in found)
        one, other = jnp.split(more, 2)
        zeros = jnp.zeros_like(one)
        firsts = jnp.where(is_before, other, zeros)
        seconds = one + jnp.where(is_before, zeros, other)
        dq += jnp.concatenate([firsts, seconds], _TOKENS)
        one, other = jnp.split(jnp.concatenate(both[::-1], _HEADS), 2)
        zeros = jnp.zeros_like(one)
        firsts = one + jnp.where(is_before, other, zeros)
        seconds = jnp.where(is_before, zeros, other)
        return dq, jnp.concatenate([firsts, seconds], _TOKENS)

    # Values first, and not as in the forward pass: a compiler that saw the same arrays
    # moved twice would keep what came the first time.
    pair, own_pair = (jnp.concatenate(x, _HEADS) for x in ([value, key], [dv, dk]))
    dq, total = _visit_others(turn, dq, own_pair, pair, ring)
    dv, dk = jnp.split(total, 2, _HEADS)
    gradients = zip((dq, dk, dv), (query, key, value), strict=True)
    return (*(x.astype(like.dtype) for x, like in gradients), None)


blockwise_attention.defvjp(_forward, _backward)


def _segments_of(
    segments: jax.Array | None, place: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Return the segments of a device's tokens, None for this one; or nothing."""
    if segments is None:
        return ()
    return (local_tokens(segments, _TOKENS, place),)


def _block_segments(
    segments: jax.Array | None, place: jax.Array, is_before: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the segments of queries and keys of both blocks, where there are any."""
    asked = (_query_blocks(x, is_before) for x in _segments_of(segments, None))
    read = (_key_blocks(x, is_before) for x in _segments_of(segments, place))
    return (*asked, *read)


def _query_blocks(x: jax.Array, is_before: jax.Array, dim: int = _TOKENS) -> jax.Array:
    """Return what queries of both blocks have: the second chunk's, and either's."""
    first, second = jnp.split(x, 2, dim)
    return jnp.concatenate([second, jnp.where(is_before, first, second)])


def _key_blocks(x: jax.Array, is_before: jax.Array) -> jax.Array:
    """Return the keys, or values, of both blocks: the first chunk's, and either's."""
    first, second = jnp.split(x, 2, _TOKENS)
    return jnp.concatenate([first, jnp.where(is_before, first, second)])


def _visit_others(
    turn: Turn, state: Any, own: jax.Array | None, pair: jax.Array, ring: bool
) -> tuple[Any, Any]:
    """Take a turn for each other device, with its keys and values.

    Args:
        turn: what is done in it.
        state: before the first.
        own: what this device adds for itself, as turns do for others; None: they add
            nothing.
        pair: this device's keys and values.
        ring: whether they go round, and are not gathered.

    Returns:
        The state behind, and the sum of what all devices have added for this one.
    """
    devices, here = lax.axis_size(CONTEXT_AXIS), lax.axis_index(CONTEXT_AXIS)
    turns = jnp.arange(1, devices, dtype=jnp.int32)

    if ring:

        def ring_turn(carry: Any, number: jax.Array) -> tuple[Any, Any]:
            (state, total), pair = carry
            # What is sent does not wait for the turn, nor the turn for it.
            total, behind = jax.tree.map(_send, total), _send(pair)
            state, part = turn(state, pair, (here - number) % devices)
            return ((state, jax.tree.map(jnp.add, total, part)), behind), None

        carry = (state, own), _send(pair)
        # The last turn stands outside of the loop: behind it no keys are sent on.
        if devices > 2:
            carry, _ = lax.scan(ring_turn, carry, turns[:-1])
        (state, total), pair = carry
        state, part = turn(state, pair, (here + 1) % devices)
        # Sums travel with the keys that they are for; the last hop brings them home.
        total = jax.tree.map(lambda x, y: _send(_send(x) + y), total, part)
        return state, total

    # [n, B, T / n, 2 kv_heads, D]
    pairs = all_gather_array(pair[None], CONTEXT_AXIS)
    sums = jax.tree.map(
        lambda x: jnp.zeros((devices, *x.shape), x.dtype).at[here].set(x), own
    )

    def gathered_turn(carry: Any, number: jax.Array) -> tuple[Any, None]:
        state, sums = carry
        place = (here - number) % devices
        state, part = turn(state, pairs[place], place)
        return (state, jax.tree.map(lambda x, y: x.at[place].set(y), sums, part)), None

    (state, sums), _ = lax.scan(gathered_turn, (state, sums), turns)
    total = jax.tree.map(lambda x: reduce_scatter_array(x, CONTEXT_AXIS, 0)[0], sums)
    return state, total


def _send(x: jax.Array) -> jax.Array:
    """Send an array to the next device of the ring; 16-bit floats as bits."""
    devices = lax.axis_size(CONTEXT_AXIS)
    pairs = [(i, (i + 1) % devices) for i in range(devices)]
    if x.dtype.itemsize != 2:
        return lax.ppermute(x, CONTEXT_AXIS, pairs)
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    return lax.bitcast_convert_type(lax.ppermute(bits, CONTEXT_AXIS, pairs), x.dtype)


def headwise_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, attend: Attend
) -> jax.Array:
    """Attend to the tokens of all devices, each with a part of the heads.

    Args:
        query: [B, T / n, heads, D], this device's tokens, heads a multiple of n.
        key: [B, T / n, kv_heads, D], kv_heads a multiple of n.
        value: as `key`.
        attend: of whole samples, [B, T, heads / n, D].

    Returns:
        [B, T / n, heads, D].
    """
    whole = (
        in_order(all_to_all_dims(x, _HEADS, _TOKENS, CONTEXT_AXIS), _TOKENS)
        for x in (query, key, value)
    )
    read = by_device(attend(*whole), _TOKENS)
    return all_to_all_dims(read, _TOKENS, _HEADS, CONTEXT_AXIS)
