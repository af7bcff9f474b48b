"""Reduction of gradients: every device's shares summed over the same axes."""

import itertools
import math
from collections import defaultdict
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

Tree = TypeVar("Tree")


def sum_shares(tree: Tree, axes: tuple[str, ...]) -> Tree:
    """Sum each leaf over `axes`, so that every device holds the whole.

    Scalars and vectors of one dtype travel as one array. Besides being short, some are
    equal by construction: where two biases are added, as at the end of a residual
    block, their gradients are the same numbers, and the compiler would send them once
    in some programs and twice in others. Packed, the bytes follow from the leaves.

    Args:
        tree: arrays that hold this device's share, e.g. gradients of its part of the
            loss; any shapes and dtypes.
        axes: manual mesh axes along which the shares differ.
    """
    if not axes:
        return tree
    with jax.named_scope("reduce_gradients"):
        leaves, structure = jax.tree.flatten(tree)
        short = defaultdict(list)
        for place, leaf in enumerate(leaves):
            if leaf.ndim < 2:
                short[leaf.dtype].append(place)
        for places in short.values():
            packed = [jnp.ravel(leaves[place]) for place in places]
            _scatter(leaves, places, lax.psum(jnp.concatenate(packed), axes))
        vectors = set(itertools.chain.from_iterable(short.values()))
        rest = [place for place in range(len(leaves)) if place not in vectors]
        summed = lax.psum([leaves[place] for place in rest], axes)
        for place, leaf in zip(rest, summed):
            leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)


def _scatter(leaves: list[jax.Array], places: list[int], packed: jax.Array) -> None:
    """Put the parts of a packed array back to where they came from."""
    start = 0
    for place in places:
        shape = leaves[place].shape
        stop = start + math.prod(shape)
        leaves[place] = packed[start:stop].reshape(shape)
        start = stop
