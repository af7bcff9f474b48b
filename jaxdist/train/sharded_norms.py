"""Norms of whole leaves: clipping and trust ratios where a device holds shards.

A transform of optax that needs the length of a leaf takes it of the array at hand;
where parameters are shards, that is the length of a part. The transforms here ask for
sums of squares instead, through an extra argument of optax's `update`,

    squares(tree) -> a scalar for each leaf, its sum of squares over the whole leaf

which the step fills in, and where they need one sum over all leaves for

    total(squares) -> the sum over the leaves of all stages

Without them each leaf is whole and here, and they equal optax's own. A leaf whose
length is not needed is an `optax.MaskedNode`, in the tree and in the answer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdist.core.dtypes import accumulation_dtype

SumSquaresFn = Callable[[Any], Any]
"""From a tree shaped as the parameters to one of sums of squares, float32 or wider."""


StageSumFn = Callable[[Any], jax.Array]
"""From such a tree of sums to the sum of all, also of those on other stages."""


def local_sum_squares(tree: Any) -> Any:
    """Sum the squares of each leaf as it lies here, in float32 or wider.

    >>> local_sum_squares({"kernel": jnp.full((2, 2), 3.0)})["kernel"].item()
    36.0
    """
    return jax.tree.map(
        lambda x: jnp.square(x.astype(accumulation_dtype(x.dtype))).sum(), tree
    )


def trace_norm_requests(
    optimizer: optax.GradientTransformation, params: Any, opt_state: Any
) -> tuple[tuple[tuple[bool, ...], ...], int]:
    """Tell which leaves' squares an optimizer asks for, each time that it does.

    Args:
        optimizer: any.
        params: parameters, arrays or shapes.
        opt_state: its state.

    Returns:
        For each time whether it asks for each leaf's, and how often for a total.
    """
    found: list[tuple[bool, ...]] = []
    totals: list[jax.Array] = []

    def add(squares: Any) -> jax.Array:
        totals.append(optax.tree.sum(squares))
        return totals[-1]

    def note(tree: Any) -> Any:
        found.append(tuple(not is_masked(leaf) for leaf in leaves_with_masked(tree)))
        return local_sum_squares(tree)

    def update(params: Any, opt: Any) -> Any:
        move = optax.with_extra_args_support(optimizer)
        with jax.numpy_dtype_promotion("standard"):
            return move.update(params, opt, params, squares=note, total=add)

    jax.eval_shape(update, params, opt_state)
    return tuple(found), len(totals)


def leaves_with_masked(tree: Any) -> list[Any]:
    """List the leaves of a tree in order, those that are masked too."""
    return jax.tree.leaves(tree, is_leaf=is_masked)


def is_masked(leaf: Any) -> bool:
    """Tell whether a leaf's length is not needed."""
    return isinstance(leaf, optax.MaskedNode)


def _mask_tree(tree: Any, chosen: Any) -> Any:
    return jax.tree.map(lambda x, c: x if c else optax.MaskedNode(), tree, chosen)


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Shorten a gradient that is longer than `max_norm` over all leaves to that length.

        g * longest / |g|    where |g| = sqrt(sum of squares over all leaves)

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
        norm = jnp.sqrt(total(squares(grads)))

        def clip(grad: jax.Array) -> jax.Array:
            short = grad / norm.astype(grad.dtype) * max_norm
            return jnp.where(norm < max_norm, grad, short)

        return jax.tree.map(clip, grads), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def scale_by_trust_ratio(
    coefficient: float = 1.0, mask: Callable[[Any], Any] | None = None
) -> optax.GradientTransformationExtraArgs:
    """Give each leaf's update a length in proportion to its weights.

        u * coefficient * |w| / |u|,    or u where either length is zero

    You et al. 2017, arXiv:1708.03888, equation 6; You et al. 2020, arXiv:1904.00962.

    Args:
        coefficient: length of an update in lengths of the weights.
        mask: from a tree to one of booleans, the leaves that are scaled; None: all.
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
            ratio = coefficient * jnp.sqrt(ww) / jnp.sqrt(uu)
            return u * jnp.where((ww == 0) | (uu == 0), 1, ratio).astype(u.dtype)

        chosen = mask(params) if mask else jax.tree.map(lambda _: True, params)
        lengths = (squares(_mask_tree(tree, chosen)) for tree in (params, updates))
        return jax.tree.map(scale, chosen, updates, *lengths), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
