"""Tensor roles: what layers do with the tensor axis, set by `jaxdist.layers.context`.

    role        weights a device holds   input a device takes   what it returns
    filter      a slice of the filters   whole                  whole: slices gathered
    channel     a slice of the channels  whole, it cuts its own whole: summed
    column      a slice of the filters   whole                  its slice
    row         a slice of the channels  its slice              whole: summed
    inner       its slice                its slice              its slice
    vocabulary  a slice of the rows      whole                  whole: summed
    logits      a slice of the filters   whole                  its slice, to the loss
    experts     a slice of experts'      whole                  whole: summed
                hidden features

and where the tokens between pairs are split as well:

    scatter     a slice of the channels  its slice              its tokens of the sum
    lookup      a slice of the rows      whole                  its tokens of the sum
    combine     a slice of experts'      whole                  its tokens of the sum
                hidden features
    own         whole                    its tokens, or whole   its tokens
    gather      whole                    its tokens             whole: tokens gathered

A table has a second role, `PATH.attend`, for the products of vectors with its rows:
`filter` or `logits`.

`column` and `row` make a pair: between them every device has its own features, and the
layers there are `inner`. No gradient needs a rule of its own: each device holds a
share of the gradient of its whole activations, and all sums transpose to sums
(`jaxdist.train.step`).

Sources: filter and channel: Kahira et al. 2021, arXiv:2104.09075, section 3; pairs:
Shoeybi et al. 2019, arXiv:1909.08053, section 3; tokens: Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.
"""

from collections.abc import Mapping
from typing import Final, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.all_gather_slices import all_gather_dim, reduce_scatter_dim

Role = Literal[
    "filter",
    "channel",
    "column",
    "row",
    "inner",
    "vocabulary",
    "logits",
    "experts",
    "scatter",
    "combine",
    "lookup",
    "own",
    "gather",
]

Roles = Mapping[str, Role]
"""Roles by the path of the layer; a layer that is not in it is whole everywhere."""

TENSOR_AXIS: Final = "tensor"
TOKEN_DIM: Final = 1
"""The dim of tokens in `[B, T, C]`."""


def role_key(path: str, method: str) -> str:
    """Name one use of a layer, as roles do.

    >>> role_key("embed.tokens", "__call__"), role_key("embed.tokens", "attend")
    ('embed.tokens', 'embed.tokens.attend')
    """
    return path if method == "__call__" else f"{path}.{method}"


def local_input(x: jax.Array, role: Role | None, groups: int = 1) -> jax.Array:
    """Slice the part of a layer's input that this device's weights read.

    Args:
        x: `[B, ..., C]`, whole, or its slice of the channels for a `row`.
        role: the layer's role.
        groups: groups of channels; a filter reads one group.
    """
    if role == "channel":
        # A slice of each group: a filter reads channels of its own group alone.
        grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
        part = local_slice(grouped, grouped.shape[-1] // lax.axis_size(TENSOR_AXIS))
        return part.reshape(*x.shape[:-1], -1)
    if role in ("filter", "column") and groups > 1:
        devices, width = lax.axis_size(TENSOR_AXIS), x.shape[-1] // groups
        # A device's filters are of several groups, or a part of one.
        first = lax.axis_index(TENSOR_AXIS) * groups // devices
        size = max(groups // devices, 1) * width
        return lax.dynamic_slice_in_dim(x, first * width, size, x.ndim - 1)
    return x


def local_groups(role: Role | None, groups: int) -> int:
    """Return how many groups this device's filters are in."""
    if role in ("filter", "column") and groups > 1:
        return max(groups // lax.axis_size(TENSOR_AXIS), 1)
    return groups


def combine_output(
    y: jax.Array, role: Role | None, bias: jax.Array | None
) -> jax.Array:
    """Combine this device's part of a layer's output into what the layer returns.

    Args:
        y: `[B, ..., C]`, a slice of the filters or a part of each sum.
        role: the layer's role.
        bias: `[C]`, added once: behind a sum, or to the slice that it belongs to.
    """
    # The bias is added behind the sum: before it each device would add it once.
    if role in ("channel", "row", "experts"):
        y = tensor_all_reduce(y)
    elif role in ("scatter", "combine"):
        y = tensor_reduce_scatter(y)
    y = y if bias is None else y + broadcast_param(bias, y)
    return tensor_all_gather(y) if role == "filter" else y


def broadcast_param(param: jax.Array, y: jax.Array) -> jax.Array:
    """Return a parameter of the last dims, to be added to or multiplied with an array.

    Its gradient, a sum over all other dims, is taken in at least float32.

    Args:
        param: `[..., C]`, such as a bias.
        y: `[B, ..., C]`; `param` is cast to its dtype.
    """
    full = accumulation_dtype(y.dtype)
    if full == y.dtype:
        return param.astype(y.dtype)
    # Broadcasts transpose to a sum in their own dtype, and casts round it once.
    return jnp.broadcast_to(param.astype(full), y.shape).astype(y.dtype)


def tensor_all_reduce(y: jax.Array) -> jax.Array:
    """All-reduce, in at least float32: sums of 16 bits lose digits with each device."""
    return lax.psum(y.astype(accumulation_dtype(y.dtype)), TENSOR_AXIS).astype(y.dtype)


def tensor_reduce_scatter(y: jax.Array) -> jax.Array:
    """Reduce-scatter `[B, T, C]` in at least float32; each device keeps its tokens."""
    return reduce_scatter_dim(y, TOKEN_DIM, TENSOR_AXIS)


def local_slice(x: jax.Array, size: int) -> jax.Array:
    """Cut this device's slice of `size` out of the last dim."""
    first = lax.axis_index(TENSOR_AXIS) * size
    return lax.dynamic_slice_in_dim(x, first, size, x.ndim - 1)


def tensor_all_gather(x: jax.Array) -> jax.Array:
    """All-gather the slices of all devices along the last dim."""
    return all_gather_dim(x, x.ndim - 1, TENSOR_AXIS)


def gather_tokens(x: jax.Array, role: Role | None) -> jax.Array:
    """All-gather the tokens of all devices, behind the last layer that has its own."""
    return all_gather_dim(x, TOKEN_DIM, TENSOR_AXIS) if role == "gather" else x
