"""Skipping steps: one whose gradient is not finite changes nothing, on any device.

The decision is global. It is taken from the summed gradient, and over the whole of
sharded leaves, so that no device moves while another does not.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.train.sharded_norms import StageSumFn, SumSquaresFn, local_sum_squares

TreeT = TypeVar("TreeT")


class SkipState(NamedTuple):
    """State of an optimizer that skips steps."""

    consecutive: jax.Array
    """Consecutive skipped steps: int32 []."""
    total: jax.Array
    """Skipped steps since initialization: int32 []."""
    inner: Any
    """State of the inner optimizer after the last step that was not skipped."""


def skip_nonfinite(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Return an optimizer that skips steps with NaN or infinity in the gradient.

    As `optax.apply_if_finite`, with the decision taken over whole leaves.
    """
    # Without a branch: `inner` may communicate, which must not depend on data.
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> SkipState:
        zero = jnp.zeros((), jnp.int32)
        return SkipState(consecutive=zero, total=zero, inner=inner.init(params))

    def update(
        grads: Any,
        state: SkipState,
        params: Any = None,
        *,
        squares: SumSquaresFn = local_sum_squares,
        total: StageSumFn = optax.tree.sum,
        **others: Any,
    ) -> tuple[Any, SkipState]:
        # The squares of 0 and 1 count what is not finite, with the sums over devices
        # that norms have.
        marks = jax.tree.map(
            lambda x: (~jnp.isfinite(x)).astype(accumulation_dtype(x.dtype)), grads
        )
        bad = total(squares(marks)) > 0
        more = {"squares": squares, "total": total, **others}
        moved = inner.update(grads, state.inner, params, **more)
        # The inner optimizer has run on NaN; its results are thrown away.
        still = jax.tree.map(jnp.zeros_like, moved[0]), state.inner
        updates, kept = _select(bad, still, moved)
        skipped = bad.astype(jnp.int32)
        new = SkipState(
            consecutive=(state.consecutive + 1) * skipped,
            total=state.total + skipped,
            inner=kept,
        )
        return updates, new

    return optax.GradientTransformationExtraArgs(init, update)


def keep_old_if_skipped(opt: Any, new: TreeT, old: TreeT) -> TreeT:
    """Return `new`, or `old` where the last step was skipped.

    Args:
        opt: state of the optimizer after the step, of any kind.
        new: a tree after the step.
        old: the same tree before the step.
    """
    if not isinstance(opt, SkipState):
        return new
    return _select(opt.consecutive > 0, old, new)


def count_skipped_steps(opt: Any) -> int:
    """Return the number of skipped steps since initialization."""
    return int(opt.total) if isinstance(opt, SkipState) else 0


def _select(first: jax.Array, one: TreeT, other: TreeT) -> TreeT:
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)
