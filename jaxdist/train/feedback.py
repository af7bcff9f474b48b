"""Feedback: what compressed gradients leave on a device, given to the next step.

    velocity <- momentum velocity + gradient        (without momentum: the gradient)
    sum      =  velocity + residual
    total    =  what all devices send of their sums, compressed
    residual <- sum - sent
    velocity <- 0 where something was sent

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

from jaxdist.collectives.primitives import reduce
from jaxdist.core.plan import Plan
from jaxdist.core.reduce import Reduce
from jaxdist.partition.leaves import Leaf
from jaxdist.partition.reduction import Bucket, Reduction


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("residual", "velocity", "memory"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What devices keep between steps; arrays by the name of the parameter."""

    residual: dict[str, Any]
    """What was not sent: [devices along the axes of the sum, *parameter]."""
    velocity: dict[str, Any]
    """Gradients gathered with momentum, where there is one: as the residual."""
    memory: dict[str, Any]
    """What the method remembers: [devices that split the parameter, ...]."""


def begin(
    plan: Plan, reduction: Reduction, leaves: Sequence[Leaf]
) -> tuple[Feedback, Feedback] | tuple[None, None]:
    """Return shapes and specs of what is kept; None where nothing is compressed."""
    if not reduction.buckets:
        return None, None
    kept, memory = {}, {}
    for bucket in reduction.buckets:
        held = [leaves[place] for place in bucket.places]
        kept.update({leaf.name: _residual(plan, bucket, leaf) for leaf in held})
        memory.update(_memory(plan, reduction, held))
    residual = kept if plan.reduce.feedback and not reduction.method.lossless else {}
    velocity = kept if plan.reduce.momentum else {}
    shapes, specs = (
        Feedback(
            residual={name: pair[i] for name, pair in residual.items()},
            velocity={name: pair[i] for name, pair in velocity.items()},
            memory={name: pair[i] for name, pair in memory.items()},
        )
        for i in (0, 1)
    )
    return shapes, specs


def summed(
    asked: Reduce,
    reduction: Reduction,
    names: Sequence[str],
    grads: Sequence[jax.Array],
    before: Feedback | None,
    step: jax.Array,
) -> tuple[list[jax.Array], Feedback | None]:
    """Sum the buckets, inside the step.

    Args:
        asked: the plan's settings.
        reduction: what is compressed, and how.
        names: of the parameters, in the tree's order.
        grads: this device's gradients, already summed over the other axes.
        before: what the last step left, this device's part.
        step: steps done, int32 [].

    Returns:
        The sums, and what this step leaves.
    """
    whole = list(grads)
    if before is None or not reduction.buckets:
        return whole, before
    after = Feedback(residual={}, velocity={}, memory={})
    for number, bucket in enumerate(reduction.buckets):
        with jax.named_scope(f"reduce_gradients/bucket{number}"):
            held = [names[place] for place in bucket.places]
            own = [grads[place] for place in bucket.places]
            fast = _moved(before, held, own, asked.momentum)
            sums = _added(before, held, fast)
            memory = [before.memory[n][0] for n in held if n in before.memory]
            found = reduce(sums, bucket.axes, reduction.method, memory, step)
        for place, total in zip(bucket.places, found.total, strict=True):
            whole[place] = total
        left = [x - sent for x, sent in zip(sums, found.sent, strict=True)]
        still = [jnp.where(s == 0, v, 0) for s, v in zip(found.sent, fast, strict=True)]
        after.residual.update(_rows(before.residual, held, left))
        after.velocity.update(_rows(before.velocity, held, still))
        kept = [n for n in held if n in before.memory]
        after.memory.update(_rows(before.memory, kept, found.memory))
    return whole, after


def _moved(
    before: Feedback, names: Sequence[str], grads: Sequence[jax.Array], momentum: float
) -> list[jax.Array]:
    """Gather gradients with momentum, where there is one."""
    if not before.velocity:
        return list(grads)
    return [momentum * before.velocity[n][0] + g for n, g in zip(names, grads)]


def _added(
    before: Feedback, names: Sequence[str], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    """Add what was not sent before."""
    if not before.residual:
        return list(arrays)
    return [before.residual[n][0] + x for n, x in zip(names, arrays)]


def _rows(
    like: Mapping[str, Any], names: Sequence[str], arrays: Sequence[jax.Array]
) -> dict[str, jax.Array]:
    """Give arrays the leading dim of this device, where they are kept."""
    return {n: x[None] for n, x in zip(names, arrays, strict=True) if n in like}


def _residual(plan: Plan, bucket: Bucket, leaf: Leaf) -> tuple[jax.ShapeDtypeStruct, P]:
    shape = (plan.mesh.size(*bucket.axes), *leaf.shape)
    return jax.ShapeDtypeStruct(shape, leaf.dtype), P(bucket.axes, *leaf.spec())


def _memory(
    plan: Plan, reduction: Reduction, leaves: Sequence[Leaf]
) -> dict[str, tuple[jax.ShapeDtypeStruct, P]]:
    """Say what the method keeps of each parameter; most keep nothing."""
    found = {}
    for leaf in leaves:
        split = tuple(axis for axis in leaf.spec() if axis)
        for x in jax.eval_shape(
            lambda leaf=leaf: reduction.method.begin([leaf.local(plan)])
        ):
            shape = (plan.mesh.size(*split), *x.shape)
            found[leaf.name] = jax.ShapeDtypeStruct(shape, x.dtype), P(split or None)
    return found
