"""Error feedback: what compressed gradients did not send, added to the next step.

    velocity <- momentum velocity + gradient
    sum      =  gradient + momentum velocity + residual       (Nesterov's)
    total    =  what all devices send of their sums, compressed
    residual <- sum - sent
    velocity <- 0 where something was sent, unless all of it always is

Source: Seide et al. 2014 (residuals); Lin et al. 2018, arXiv:1712.01887, algorithm 4
(momentum correction, and masking of what was sent).

Everything is in units of the gradient, before clipping and the learning rate. A step
that is skipped leaves it as it was.
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
    """State of compressed gradients between steps; arrays by name of the parameter."""

    residual: dict[str, Any]
    """What was not sent: [devices along the axes of the sum, *parameter]."""
    velocity: dict[str, Any]
    """Velocities, where there is momentum: as the residual, and [1, *parameter] of
    parameters whose gradients are summed exactly.
    """
    memory: dict[str, Any]
    """State of the algorithm: [devices that split the parameter, ...]."""


def error_feedback_shapes(
    plan: Plan, reduction: GradientReduction, param_shardings: Sequence[LeafSharding]
) -> tuple[ErrorFeedback, ErrorFeedback] | tuple[None, None]:
    """Return shapes and specs of the error feedback; None where there is none."""
    if not (reduction.buckets or plan.reduce.momentum):
        return None, None

    def row(leaf: LeafSharding, axes: Axes) -> tuple[jax.ShapeDtypeStruct, P]:
        """Return the parameter's rows, one for each device along the axes."""
        shape = (plan.mesh.size(*axes), *leaf.shape)
        return jax.ShapeDtypeStruct(shape, leaf.dtype), P(axes or None, *leaf.spec())

    compressed, memory = {}, {}
    for bucket in reduction.buckets:
        # Many leaves have the same shape, and each is a trace.
        states: dict[tuple[int, ...], Any] = {}
        for leaf in (param_shardings[place] for place in bucket.leaf_indices):
            compressed[leaf.name] = row(leaf, bucket.axes)
            # Most algorithms are stateless; PowerSGD remembers a factor of each matrix.
            split = tuple(axis for axis in leaf.spec() if axis)
            local = leaf.local_shape(plan)
            if local not in states:
                init = partial(bucket.algorithm.init_state, [local])
                states[local] = jax.eval_shape(init)
            for x in states[local]:
                shape = (plan.mesh.size(*split), *x.shape)
                memory[leaf.name] = (
                    jax.ShapeDtypeStruct(shape, x.dtype),
                    P(split or None),
                )
    # Lossless algorithms send everything: nothing is left.
    residual = (
        compressed if plan.reduce.error_feedback and not reduction.lossless else {}
    )
    velocity = {}
    if plan.reduce.momentum:
        velocity = {leaf.name: row(leaf, ()) for leaf in param_shardings} | compressed
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
    """All-reduce the buckets, and give every gradient its momentum, inside the step.

    Args:
        config: settings of the plan.
        reduction: what is compressed, and how.
        names: names of the parameters, in the tree's order.
        grads: this device's gradients, already summed over the other axes.
        state: error feedback of the last step, this device's part.
        step: steps done, int32 [].

    Returns:
        The sums, and the error feedback of this step.
    """
    summed = list(grads)
    if state is None:
        return summed, state
    after = ErrorFeedback(residual={}, velocity={}, memory={})
    # Gradients that are summed exactly move with the same momentum, each after its sum:
    # so compressed leaves, short ones and the steps of a warm-up follow one recipe,
    # that of an optimizer with this momentum.
    exact = [i for i in range(len(names)) if i not in reduction.compressed_indices]
    held = [names[i] for i in exact]
    ahead, velocities = _apply_momentum(
        state, held, [grads[i] for i in exact], config.momentum
    )
    after.velocity.update(_add_device_dim(state.velocity, held, velocities))
    for place, total in zip(exact, ahead, strict=True):
        summed[place] = total

    for number, bucket in enumerate(reduction.buckets):
        with jax.named_scope(f"{BUCKET_SCOPE}{number}"):
            held = [names[place] for place in bucket.leaf_indices]
            own = [grads[place] for place in bucket.leaf_indices]
            sums, velocities = _apply_momentum(state, held, own, config.momentum)
            if state.residual:
                sums = [state.residual[n][0] + x for n, x in zip(held, sums)]
            remembered = [n for n in held if n in state.memory]
            memory = [state.memory[n][0] for n in remembered]
            found = all_reduce(sums, bucket.axes, bucket.algorithm, memory, step)
        for place, total in zip(bucket.leaf_indices, found.total, strict=True):
            summed[place] = total
        # Less what came into the total, not what was packed: it may be rounded again
        # on the way (docs/adr/0024).
        left = [x - sent for x, sent in zip(sums, found.contributions, strict=True)]
        if not bucket.algorithm.lossless:
            # Momentum of what was sent stops: it would move on in an old direction.
            sent = zip(found.contributions, velocities, strict=True)
            velocities = [jnp.where(s == 0, v, 0) for s, v in sent]
        after.residual.update(_add_device_dim(state.residual, held, left))
        after.velocity.update(_add_device_dim(state.velocity, held, velocities))
        after.memory.update(_add_device_dim(state.memory, remembered, found.state))
    return summed, after


def _apply_momentum(
    state: ErrorFeedback,
    names: Sequence[str],
    grads: Sequence[jax.Array],
    momentum: float,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return gradients with Nesterov's momentum, and the new velocities."""
    # Without momentum nothing is stored, and gradients pass through.
    if not state.velocity:
        return list(grads), list(grads)
    fast = [momentum * state.velocity[n][0] + g for n, g in zip(names, grads)]
    return [g + momentum * v for g, v in zip(grads, fast)], fast


def _add_device_dim(
    like: Mapping[str, Any], names: Sequence[str], arrays: Sequence[jax.Array]
) -> dict[str, jax.Array]:
    """Return arrays with the leading dim of this device, of names that `like` has."""
    return {n: x[None] for n, x in zip(names, arrays, strict=True) if n in like}
