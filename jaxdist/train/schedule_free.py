"""Schedule-free optimizers: the state's parameters are an average, with no schedule.

    y = b x + (1 - b) z                the gradient is taken at y
    z <- z + base(grad f(y))           the base optimizer's step, without momentum
    x <- (1 - c) x + c z               c = r^2 / sum of r^2 so far, r the largest rate

`TrainState.params` are x, which is what is evaluated, saved, exported and loaded; z is
in the optimizer's state, and y exists in a step alone. `optax.contrib.schedule_free`
keeps y in place of x: everything that reads a checkpoint would have to read z with it.

Source: Defazio et al. 2024, arXiv:2405.15682, equations 1 to 3 and section 3.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan


class ScheduleFreeState(NamedTuple):
    """State of `schedule_free`."""

    b1: jax.Array
    """Share of x in y."""
    weight_sum: jax.Array
    """Sum of the weights of all z so far."""
    step_count: jax.Array
    """Updates so far, and one: int32 []."""
    max_rate: jax.Array
    """Largest learning rate so far."""
    base: Any
    """State of the base optimizer."""
    z: Any
    """What the base optimizer moves, a tree as the parameters."""


def schedule_free(
    base: optax.GradientTransformation, rate: optax.Schedule, b1: float
) -> optax.GradientTransformationExtraArgs:
    """Average what a base optimizer moves, in place of its momentum.

    Args:
        base: optimizer without momentum, its learning rate included.
        rate: that learning rate; it warms up and stays.
        b1: share of the average in the point at which gradients are taken.
    """
    moves = optax.with_extra_args_support(base)

    def init(params: Any) -> ScheduleFreeState:
        return ScheduleFreeState(
            b1=jnp.asarray(b1, float),
            weight_sum=jnp.zeros([], float),
            # As optax counts for these weights: from the rate behind the first.
            step_count=jnp.ones([], jnp.int32),
            max_rate=jnp.zeros([], float),
            base=moves.init(params),
            # Copies: a step donates its state, and a buffer can be donated only once.
            z=jax.tree.map(jnp.copy, params),
        )

    def update(
        grads: Any, state: ScheduleFreeState, params: Any = None, **others: Any
    ) -> tuple[Any, ScheduleFreeState]:
        at = _mix(state, params)
        steps, base_state = moves.update(grads, state.base, at, **others)
        z = optax.apply_updates(state.z, steps)
        highest = jnp.maximum(
            state.max_rate, jnp.asarray(rate(state.step_count), state.max_rate.dtype)
        )
        weight = highest**2
        total = state.weight_sum + weight
        share = jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), 0)
        moved = jax.tree.map(lambda x, z: share.astype(x.dtype) * (z - x), params, z)
        return moved, state._replace(
            weight_sum=total,
            step_count=state.step_count + 1,
            max_rate=highest,
            base=base_state,
            z=z,
        )

    return optax.GradientTransformationExtraArgs(init, update)


def gradient_params(params: Any, opt: Any) -> Any:
    """Return the parameters at which a step takes the gradient.

    Args:
        params: those of the state.
        opt: state of any optimizer; where it has no `ScheduleFreeState` the parameters
            are returned as they are.
    """
    state = _find_state(opt)
    return params if state is None else _mix(state, params)


def check_schedule_free(plan: Plan, opt: Any) -> None:
    """Refuse plans in which a device has not the z of all that it computes with.

    Raises:
        BadInput: naming the key of the plan.
    """
    if _find_state(opt) is None:
        return
    if plan.zero == 1 and plan.mesh.fsdp > 1:
        what, remedy = "plan.zero = 1", "plan.zero=3"
        why = "z is split over fsdp as the optimizer's state is, and y needs it whole"
    elif plan.pipe.flows:
        what, remedy = f"plan.pipe.schedule = {plan.pipe.schedule}", "1f1b"
        remedy = f"plan.pipe.schedule={remedy}"
        why = "stages move one after the other, from different y"
    elif plan.replicas > 1:
        what = f"plan.mesh.replica = {plan.mesh.replica}"
        remedy = f"plan.mesh.data={plan.mesh.data * plan.mesh.replica} "
        remedy += "plan.mesh.replica=1"
        why = "replicas would exchange x and keep their z"
    else:
        return
    raise BadInput(
        f"schedule-free optimizers do not go with {what}",
        rule="each device has x and z of the same parameters",
        values=f"{what}: {why}",
        remedy=(remedy, "optim.name=adamw"),
    )


def _mix(state: ScheduleFreeState, params: Any) -> Any:
    def mix(x: jax.Array, z: jax.Array) -> jax.Array:
        return z + state.b1.astype(x.dtype) * (x - z)

    return jax.tree.map(mix, params, state.z)


def _find_state(opt: Any) -> ScheduleFreeState | None:
    """Return the schedule-free part of an optimizer's state, or None."""

    def is_own(node: Any) -> bool:
        return isinstance(node, ScheduleFreeState)

    return next(filter(is_own, jax.tree.leaves(opt, is_leaf=is_own)), None)
