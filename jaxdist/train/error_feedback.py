"""Feedback: what compressed gradients leave on a device, given to the next step.

    velocity <- momentum velocity + gradient
    sum      =  gradient + momentum velocity + residual       (Nesterov's)
    total    =  what all devices send of their sums, compressed
    residual <- sum - sent
    velocity <- 0 where something was sent, unless all of it always is

Gradients that are summed exactly move with the same momentum, each after its sum: so
what is sent, what is short and the steps of a warm-up follow one recipe, that of an
optimizer with this momentum.

Source: Seide et al. 2014 (residuals); Lin et al. 2018, arXiv:1712.01887, algorithm 4
(momentum correction, and masking of what was sent).

Everything here is in units of the gradient, before clipping and the learning rate. A
step that is skipped leaves it as it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.method import Axes
from jaxdist.collectives.primitives import all_reduce
from jaxdist.core.plan import Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.partition.gradient_buckets import (
    BUCKET_SCOPE,
    GradientBucket,
    GradientReduction,
)
from jaxdist.partition.param_sharding import LeafSharding


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("residual", "velocity", "memory"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class ErrorFeedback:
    """What devices keep between steps; arrays by the name of the parameter."""

    residual: dict[str, Any]
    """What was not sent: [devices along the axes of the sum, *parameter]."""
    velocity: dict[str, Any]
    """Gradients gathered with momentum, where there is one: as the residual, and [1,
    *parameter] of those that are summed exactly.
    """
    memory: dict[str, Any]
    """What the method remembers: [devices that split the parameter, ...]."""


def error_feedback_shapes(
    plan: Plan, reduction: GradientReduction, param_shardings: Sequence[LeafSharding]
) -> tuple[ErrorFeedback, ErrorFeedback] | tuple[None, None]:
    """Return shapes and specs of what is kept; None where nothing is."""
    if not (reduction.buckets or plan.reduce.momentum):
        return None, None
    kept, memory = {}, {}
    for bucket in reduction.buckets:
        held = [param_shardings[place] for place in bucket.leaf_indices]
        kept.update(
            {leaf.name: _row_shape_and_spec(plan, bucket.axes, leaf) for leaf in held}
        )
        memory.update(_algorithm_state_shapes(plan, bucket, held))
    residual = kept if plan.reduce.feedback and not reduction.lossless else {}
    moving = {
        leaf.name: _row_shape_and_spec(plan, (), leaf) for leaf in param_shardings
    } | kept
    velocity = moving if plan.reduce.momentum else {}
    shapes, specs = (
        ErrorFeedback(
            residual={name: pair[i] for name, pair in residual.items()},
            velocity={name: pair[i] for name, pair in velocity.items()},
            memory={name: pair[i] for name, pair in memory.items()},
        )
        for i in (0, 1)
    )
    return shapes, specs


def all_reduce_compressed(
    config: ReductionConfig,
    reduction: GradientReduction,
    names: Sequence[str],
    grads: Sequence[jax.Array],
    state: ErrorFeedback | None,
    step: jax.Array,
) -> tuple[list[jax.Array], ErrorFeedback | None]:
    """Sum the buckets, and give every gradient its momentum, inside the step.

    Args:
        config: the plan's settings.
        reduction: what is compressed, and how.
        names: of the parameters, in the tree's order.
        grads: this device's gradients, already summed over the other axes.
        state: what the last step left, this device's part.
        step: steps done, int32 [].

    Returns:
        The sums, and what this step leaves.
    """
    whole = list(grads)
    if state is None:
        return whole, state
    after = ErrorFeedback(residual={}, velocity={}, memory={})
    short = [
        place
        for place in range(len(whole))
        if place not in reduction.compressed_indices
    ]
    exactly = [names[place] for place in short]
    ahead, fast = _apply_momentum(
        state, exactly, [whole[i] for i in short], config.momentum
    )
    after.velocity.update(_add_device_dim(state.velocity, exactly, fast))
    for place, total in zip(short, ahead, strict=True):
        whole[place] = total
    for number, bucket in enumerate(reduction.buckets):
        with jax.named_scope(f"{BUCKET_SCOPE}{number}"):
            held = [names[place] for place in bucket.leaf_indices]
            own = [grads[place] for place in bucket.leaf_indices]
            ahead, fast = _apply_momentum(state, held, own, config.momentum)
            sums = _add_residual(state, held, ahead)
            memory = [state.memory[n][0] for n in held if n in state.memory]
            found = all_reduce(sums, bucket.axes, bucket.algorithm, memory, step)
        for place, total in zip(bucket.leaf_indices, found.total, strict=True):
            whole[place] = total
        left = [x - sent for x, sent in zip(sums, found.contributions, strict=True)]
        still = (
            fast
            if bucket.algorithm.lossless
            else _mask_sent_momentum(fast, found.contributions)
        )
        after.residual.update(_add_device_dim(state.residual, held, left))
        after.velocity.update(_add_device_dim(state.velocity, held, still))
        kept = [n for n in held if n in state.memory]
        after.memory.update(_add_device_dim(state.memory, kept, found.state))
    return whole, after


def _apply_momentum(
    state: ErrorFeedback,
    names: Sequence[str],
    grads: Sequence[jax.Array],
    momentum: float,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return gradients moved on by Nesterov's momentum, and the new velocities."""
    if not state.velocity:
        return list(grads), list(grads)
    fast = [momentum * state.velocity[n][0] + g for n, g in zip(names, grads)]
    return [g + momentum * v for g, v in zip(grads, fast)], fast


def _mask_sent_momentum(
    velocities: Sequence[jax.Array], sent: Sequence[jax.Array]
) -> list[jax.Array]:
    """Stop what was sent: its momentum would move it in a direction that is old."""
    return [jnp.where(s == 0, v, 0) for s, v in zip(sent, velocities, strict=True)]


def _add_residual(
    state: ErrorFeedback, names: Sequence[str], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    """Add what was not sent before."""
    if not state.residual:
        return list(arrays)
    return [state.residual[n][0] + x for n, x in zip(names, arrays)]


def _add_device_dim(
    like: Mapping[str, Any], names: Sequence[str], arrays: Sequence[jax.Array]
) -> dict[str, jax.Array]:
    """Give arrays the leading dim of this device, where they are kept."""
    return {n: x[None] for n, x in zip(names, arrays, strict=True) if n in like}


def _row_shape_and_spec(
    plan: Plan, axes: Axes, leaf: LeafSharding
) -> tuple[jax.ShapeDtypeStruct, P]:
    """Say how a parameter's rows lie, one for each device along the axes."""
    shape = (plan.mesh.size(*axes), *leaf.shape)
    return jax.ShapeDtypeStruct(shape, leaf.dtype), P(axes or None, *leaf.spec())


def _algorithm_state_shapes(
    plan: Plan, bucket: GradientBucket, leaves: Sequence[LeafSharding]
) -> dict[str, tuple[jax.ShapeDtypeStruct, P]]:
    """Say what the method keeps of each parameter; most keep nothing."""
    found = {}
    for leaf in leaves:
        split = tuple(axis for axis in leaf.spec() if axis)
        for x in jax.eval_shape(
            lambda leaf=leaf: bucket.algorithm.init_state([leaf.local_shape(plan)])
        ):
            shape = (plan.mesh.size(*split), *x.shape)
            found[leaf.name] = jax.ShapeDtypeStruct(shape, x.dtype), P(split or None)
    return found
