"""Norms of whole leaves: clipping and trust ratios where devices hold shards.

A transform of optax that needs the length of a leaf takes it of the array at hand;
where parameters are shards, that is the length of a part. The transforms here request
sums of squares instead, through an extra argument of optax's `update`,

    squares(tree) -> a scalar for each leaf, its sum of squares over the whole leaf

which the step provides, and where they need one sum over all leaves through

    total(squares) -> the sum over the leaves of all stages

Without them each leaf is taken for whole, and the transforms equal optax's own. A leaf
whose length is not needed is an `optax.MaskedNode`, in the tree and in the result.
"""

from collections.abc import Callable
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdist.core.dtypes import accumulation_dtype, is_complex

SumSquaresFn = Callable[[Any], Any]
"""Maps a tree of the parameters' form to sums of squares, float32 or wider."""

StageSumFn = Callable[[Any], jax.Array]
"""Maps such a tree of sums to the sum of all, those of other stages included."""


def local_sum_squares(tree: Any) -> Any:
    """Return the sum of squares of each local leaf, in float32 or wider.

    >>> local_sum_squares({"kernel": jnp.full((2, 2), 3.0)})["kernel"].item()
    36.0
    """

    def squares(x: jax.Array) -> jax.Array:
        # The square of a float16 number above 255 is infinite in float16.
        x = x.astype(accumulation_dtype(x.dtype))
        if is_complex(x.dtype):
            return (jnp.square(x.real) + jnp.square(x.imag)).sum()
        return jnp.square(x).sum()

    return jax.tree.map(squares, tree)


def leaves_with_masked(tree: Any) -> list[Any]:
    """Return the leaves of a tree in order, masked ones included."""
    return jax.tree.leaves(tree, is_leaf=is_masked)


def is_masked(leaf: Any) -> bool:
    """Return whether a leaf is masked."""
    return isinstance(leaf, optax.MaskedNode)


def mask_others(chosen: Any, tree: Any) -> Any:
    """Return a tree in which the leaves that are not chosen are masked."""
    return jax.tree.map(lambda c, x: x if c else optax.MaskedNode(), chosen, tree)


def global_norm(tree: Any, squares: SumSquaresFn, total: StageSumFn) -> jax.Array:
    """Return the norm over all leaves, float32 [] or wider.

    Args:
        tree: of the parameters' form, as devices hold it.
        squares: sums the squares of each whole leaf.
        total: sums over the leaves of all stages.
    """
    return jnp.sqrt(total(squares(tree)))


def memoize_sums(sums: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of sums that remembers the trees it was given.

    What it is given a second time, the same arrays, costs no second collective.

    Args:
        sums: sums over devices, of a tree of traced arrays.
    """
    known: list[tuple[list[Any], Any]] = []

    def remember(tree: Any) -> Any:
        leaves = leaves_with_masked(tree)
        for given, found in known:
            if len(given) == len(leaves) and all(map(is_, given, leaves)):
                return found
        known.append((leaves, sums(tree)))
        return known[-1][1]

    return remember


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Clip a gradient by its norm over all leaves.

        g * max_norm / |g|    where |g| = sqrt(sum of squares over all leaves)

    Pascanu et al. 2013, arXiv:1211.5063, algorithm 1.
    """

    def update(
        grads: Any,
        state: Any,
        params: Any = None,
        *,
        squares: SumSquaresFn = local_sum_squares,
        total: StageSumFn = optax.tree.sum,
        **others: Any,
    ) -> tuple[Any, Any]:
        del params, others
        # Divided before it is multiplied, as in optax: the bits are the same.
        norm = global_norm(grads, squares, total)

        def clip(grad: jax.Array) -> jax.Array:
            short = grad / norm.astype(grad.dtype) * max_norm
            return jnp.where(norm < max_norm, grad, short)

        return jax.tree.map(clip, grads), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def scale_by_trust_ratio(
    coefficient: float = 1.0, mask: Callable[[Any], Any] | None = None
) -> optax.GradientTransformationExtraArgs:
    """Scale each leaf's update to a length in proportion to its weights.

        u * coefficient * |w| / |u|,    or u where either length is zero

    You et al. 2017, arXiv:1708.03888, equation 6; You et al. 2020, arXiv:1904.00962.

    Args:
        coefficient: length of an update as a share of the length of the weights.
        mask: maps a tree to booleans, the leaves that are scaled; None for all.
    """

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        squares: SumSquaresFn = local_sum_squares,
        **others: Any,
    ) -> tuple[Any, Any]:
        del others
        if params is None:
            raise ValueError("a trust ratio needs the parameters: update(u, state, p)")

        def scale(scaled: bool, u: jax.Array, ww: jax.Array, uu: jax.Array) -> Any:
            if not scaled:
                return u
            # Where either length is zero, as for new weights, the update stays as it
            # is.
            ratio = coefficient * jnp.sqrt(ww) / jnp.sqrt(uu)
            return u * jnp.where((ww == 0) | (uu == 0), 1, ratio).astype(u.dtype)

        chosen = mask(params) if mask else jax.tree.map(lambda _: True, params)
        lengths = (squares(mask_others(chosen, tree)) for tree in (params, updates))
        return jax.tree.map(scale, chosen, updates, *lengths), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
