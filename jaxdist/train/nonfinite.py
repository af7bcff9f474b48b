"""What is not finite: found in every step, skipped where asked, named afterwards.

A step reports it through its loss, which all devices have and the host reads anyway:

    NaN    a gradient is not finite on some device: each device looks at its own share
           before the sums, and the sum of the loss carries it to all of them
    inf    the state after the step is not finite: each device looks at what it holds

No other number is moved between devices. A loss of ours alone would not do: an
activation may turn NaN into 0, forward, while gradients have it.

Skipping: a step whose gradient is not finite changes nothing, on any device. The
decision is global. It is taken from the summed gradient, and over the whole of sharded
leaves, so that no device moves while another does not.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdist.core.dtypes import accumulation_dtype, real_dtype
from jaxdist.core.errors import FatalError
from jaxdist.train.sharded_norms import StageSumFn, SumSquaresFn, local_sum_squares
from jaxdist.train.state import TrainState, named_leaves

TreeT = TypeVar("TreeT")

_SMALL_LEAF: Final = 2**15
"""Numbers of a leaf that is looked at together with others."""
_MAX_NAMED_IDS: Final = 8
"""Samples that an error names; a batch may have thousands."""


def nan_unless_finite(loss: jax.Array, *trees: Any) -> jax.Array:
    """Return the loss, or NaN where a number of the trees is not finite."""
    return jnp.where(_all_finite(trees), loss, jnp.full_like(loss, jnp.nan))


def inf_unless_finite(
    loss: jax.Array, new: TrainState, old_stats: Any = None
) -> jax.Array:
    """Return the loss, or infinity where this device's part of a state is not finite.

    Args:
        loss: of the step.
        new: the state after the step.
        old_stats: running statistics before it. What a network keeps may hold infinity
            on purpose, as masks do: there only what was finite before counts.
    """
    finite = _all_finite((new.params, new.opt, new.average))
    before, after = map(jax.tree.leaves, (old_stats, new.stats))
    for old, now in zip(before, after, strict=True):
        if _is_inexact(now):
            finite &= (jnp.isfinite(now) | ~jnp.isfinite(old)).all()
    # A gradient that is not finite is the cause, and stays what is reported; but where
    # steps are skipped NaN says that one was, and nothing else.
    skips = isinstance(new.opt, SkipState)
    cause = new.opt.consecutive > 0 if skips else jnp.isnan(loss)
    return jnp.where(finite | cause, loss, jnp.full_like(loss, jnp.inf))


def count_nonfinite(array: Any) -> int:
    """Count the numbers of an array on this host that are not finite.

    Of an array that lies on several hosts those of this one are counted, each once.

    >>> count_nonfinite(np.array([1.0, np.nan, -np.inf]))
    2
    """
    if not _is_inexact(array):
        return 0
    if not isinstance(array, jax.Array):
        return int(np.count_nonzero(~np.isfinite(array)))
    parts = (x for x in array.addressable_shards if x.replica_id == 0)
    return sum(int(np.count_nonzero(~np.isfinite(np.asarray(x.data)))) for x in parts)


def nonfinite_error(
    step: int, loss: float, state: TrainState | None, ids: Iterable[int]
) -> FatalError:
    """Return the error of a step that is not finite.

    Args:
        step: the step, from 1.
        loss: what it reported: NaN for a gradient or the loss, infinity for the state.
        state: the newest state at hand, in which the first leaf is looked for.
        ids: samples of the batch on this host.
    """
    known = sorted(i for i in ids if i >= 0)
    shown = ", ".join(map(str, known[:_MAX_NAMED_IDS]))
    more = f" and {len(known) - _MAX_NAMED_IDS} more" * (len(known) > _MAX_NAMED_IDS)
    leaf = ""
    for name, array in named_leaves(state).items() if state is not None else ():
        if count := count_nonfinite(array):
            leaf = f"first leaf {name}: {count:,} of {array.size:,} numbers; "
            break
    return FatalError(
        f"step {step} is not finite: its loss is {loss}\n"
        "  rule     loss, gradients and state of every step are finite; nothing of "
        "this step is saved\n"
        f"  values   {leaf}samples {shown or 'unknown'}{more}\n"
        "  remedy   data.check=all looks for it in the samples; a lower optim.lr or\n"
        "           more optim.warmup_epochs; optim.skip_nonfinite=3 skips such steps"
    )


def _is_inexact(array: Any) -> bool:
    # Random keys and counters have no NaN.
    dtype = getattr(array, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def _all_finite(tree: Any) -> jax.Array:
    found = [jnp.isfinite(x) for x in jax.tree.leaves(tree) if _is_inexact(x)]
    # Small leaves, as norms have hundreds of, are looked at together: on a GPU a sum of
    # any size takes a few microseconds.
    parts = [x.ravel() if x.size <= _SMALL_LEAF else x.all().reshape(1) for x in found]
    return jnp.concatenate(parts).all() if parts else jnp.array(True)


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
            lambda x: (~jnp.isfinite(x)).astype(
                accumulation_dtype(real_dtype(x.dtype))
            ),
            grads,
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
