"""Reduction of gradients: every device's shares summed, each over its own axes."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

Axes = tuple[str, ...]


def all_reduce_leaves(
    leaves: Sequence[jax.Array], axes: Sequence[Axes]
) -> list[jax.Array]:
    """Sum each leaf over its axes, so that the devices along them hold the total.

    Args:
        leaves: arrays that hold this device's share, e.g. gradients of its part of the
            loss; any shapes and dtypes.
        axes: manual mesh axes along which the shares of each leaf differ.
    """
    whole = list(leaves)
    with jax.named_scope("reduce_gradients"):
        short, long = defaultdict(list), defaultdict(list)
        for place, leaf in enumerate(leaves):
            if leaf.ndim < 2:
                short[axes[place], leaf.dtype].append(place)
            else:
                long[axes[place]].append(place)
        # Scalars and vectors of one dtype are sent as one array. Besides being short,
        # some are equal by construction: where two biases are added, as at the end of a
        # residual block, their gradients are the same numbers, and the compiler would
        # send them once in some programs and twice in others. Packed, the bytes follow
        # from the leaves.
        for (over, _), places in short.items():
            packed = jnp.concatenate([jnp.ravel(leaves[place]) for place in places])
            summed = lax.psum(packed, over) if over else packed
            start = 0
            for place in places:
                stop = start + math.prod(leaves[place].shape)
                whole[place] = summed[start:stop].reshape(leaves[place].shape)
                start = stop
        for over, places in long.items():
            own = [leaves[place] for place in places]
            totals = lax.psum(own, over) if over else own
            for place, leaf in zip(places, totals, strict=True):
                whole[place] = leaf
    return whole


def replicated_axes(axes: Axes, spec: Sequence[str | None]) -> Axes:
    """Return the axes that do not split a leaf.

    >>> replicated_axes(("data", "fsdp", "tensor"), (None, "fsdp"))
    ('data', 'tensor')
    """
    return tuple(itertools.filterfalse(set(spec).__contains__, axes))
