"""Adafactor: second moments as a row and a column of each matrix, also where it is cut.

    row  <- d row + (1 - d) mean of g^2 over columns        d = 1 - t^-0.8
    col  <- d col + (1 - d) mean of g^2 over rows
    u     = g / sqrt(row col / mean of row)

then u is shortened to a root mean square of one and takes the length of its leaf. A
mean over a dim that devices share is a sum of a row or a column over them, and not of
the matrix; the step provides it, and the sizes of whole leaves, as extra arguments of
optax's `update`:

    means(tree, dim) -> the mean of each leaf over dim, -1 or -2, which stays as one row
    sizes(tree)      -> the numbers of each whole leaf

Without them each leaf is taken for whole. Source: Shazeer and Stern 2018,
arXiv:1804.04235, algorithms 4 and 5.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdist.core.dtypes import real_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.train.sharded_norms import (
    SumSquaresFn,
    local_sum_squares,
    mask_others,
)

DimMeanFn = Callable[[Any, int], Any]
"""Maps a tree of the parameters' form and a dim to means; masked leaves stay masked."""

MIN_FACTORED: Final = 128
"""Rows and columns of the least matrix whose moments are factored, optax's default."""

_DECAY_POWER, _EPSILON, _LEAST_SCALE = 0.8, 1e-30, 1e-3


class FactoredMoments(NamedTuple):
    """Second moments; of each leaf the trees have what it needs, else a single zero."""

    step_count: jax.Array
    """Updates so far: int32 []."""
    row: Any
    """Means over the last dim: `[..., rows, 1]`."""
    col: Any
    """Means over the dim before it: `[..., 1, columns]`."""
    full: Any
    """Moments of leaves that are not factored."""


def local_means(tree: Any, dim: int) -> Any:
    """Return the mean of each leaf over a dim."""
    return jax.tree.map(lambda x: x.mean(dim, keepdims=True), tree)


def whole_sizes(tree: Any) -> Any:
    """Return how many numbers each leaf has."""
    return jax.tree.map(lambda x: x.size, tree)


def adafactor(
    rate: optax.Schedule,
    *,
    weight_decay: float = 0.0,
    mask: Callable[[Any], Any] | None = None,
    min_factored: int = MIN_FACTORED,
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.adafactor`, exact where devices hold shards of leaves.

    Args:
        rate: length of a step as a share of the length of the leaf.
        weight_decay: added to the step, before the rate.
        mask: maps a tree to booleans, the leaves that decay.
        min_factored: least rows and columns of a leaf whose moments are factored.
    """
    return optax.chain(
        scale_by_factored_moments(min_factored),
        scale_to_parameters(),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(rate),
    )


def scale_by_factored_moments(
    min_factored: int,
) -> optax.GradientTransformationExtraArgs:
    """Divide by the root of second moments, of which matrices keep rows and columns."""

    def init(params: Any) -> FactoredMoments:
        def zeros(part: str) -> Callable[[Any], jax.Array]:
            def make(x: Any) -> jax.Array:
                *outer, rows, columns = (1, 1, *x.shape) if x.ndim < 2 else x.shape
                factored = x.ndim > 1 and min(rows, columns) >= min_factored
                shapes = {
                    "row": (*outer, rows, 1) if factored else (1,) * x.ndim,
                    "col": (*outer, 1, columns) if factored else (1,) * x.ndim,
                    "full": (1,) * x.ndim if factored else x.shape,
                }
                return jnp.zeros(shapes[part], real_dtype(x.dtype))

            return make

        parts = {p: jax.tree.map(zeros(p), params) for p in ("row", "col", "full")}
        return FactoredMoments(step_count=jnp.zeros([], jnp.int32), **parts)

    def update(
        grads: Any,
        state: FactoredMoments,
        params: Any = None,
        *,
        means: DimMeanFn = local_means,
        **others: Any,
    ) -> tuple[Any, FactoredMoments]:
        del params, others
        # In float32 as optax, whose numbers these are.
        share = 1 - (state.step_count + 1).astype(jnp.float32) ** -_DECAY_POWER
        squares = jax.tree.map(
            lambda g: (
                jnp.square(g.real) + jnp.square(g.imag) + _EPSILON
                if jnp.iscomplexobj(g)
                else jnp.square(g) + _EPSILON
            ),
            grads,
        )
        factored = jax.tree.map(lambda g, v: g.shape != v.shape, grads, state.full)

        def move(old: jax.Array, new: jax.Array) -> jax.Array:
            return (share * old + (1 - share) * new).astype(old.dtype)

        def move_factor(old: Any, dim: int) -> Any:
            return jax.tree.map(
                lambda own, v, new: move(v, new) if own else v,
                factored,
                old,
                means(mask_others(factored, squares), dim),
            )

        row, col = move_factor(state.row, -1), move_factor(state.col, -2)
        full = jax.tree.map(
            lambda own, v, new: v if own else move(v, new),
            factored,
            state.full,
            squares,
        )

        def divide(own: bool, g: Any, r: Any, c: Any, v: Any, mean: Any) -> Any:
            if own:
                return g * (r / mean) ** -0.5 * c**-0.5
            return g * v**-0.5

        mean = means(mask_others(factored, row), -2)
        found = jax.tree.map(divide, factored, grads, row, col, full, mean)
        count = optax.safe_increment(state.step_count)
        return found, FactoredMoments(step_count=count, row=row, col=col, full=full)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_to_parameters() -> optax.GradientTransformationExtraArgs:
    """Shorten each update to a root mean square of one, times that of its leaf.

    u / max(1, rms(u)) * max(rms(w), 0.001)
    """

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        squares: SumSquaresFn = local_sum_squares,
        sizes: Callable[[Any], Any] = whole_sizes,
        **others: Any,
    ) -> tuple[Any, Any]:
        del others

        def scale(u: jax.Array, uu: jax.Array, ww: jax.Array, size: int) -> Any:
            length, own = jnp.sqrt(uu / size), jnp.sqrt(ww / size)
            times = jnp.maximum(own, _LEAST_SCALE) / jnp.maximum(1.0, length)
            return u * times.astype(u.dtype)

        lengths = squares(updates), squares(params)
        return jax.tree.map(scale, updates, *lengths, sizes(updates)), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def check_factored(plan: Plan, opt: Any) -> None:
    """Refuse factored moments in a pipeline, whose slots are no matrices.

    Raises:
        BadInput: names another optimizer.
    """

    def is_own(node: Any) -> bool:
        return isinstance(node, FactoredMoments)

    if plan.stages > 1 and any(map(is_own, jax.tree.leaves(opt, is_leaf=is_own))):
        raise BadInput(
            "stages cannot move parameters by factored moments",
            rule="in a pipeline leaves of several stages share a slot, which has no "
            "rows and columns; optim.name=adafactor needs them",
            values=f"plan.mesh.pipe = {plan.mesh.pipe}",
            remedy=("optim.name=adamw", "plan.mesh.pipe=1 plan.mesh.fsdp=N"),
        )
