"""The outer loop: replicas that train on their own, and the steps that join them.

    difference <- mean over replicas of (outer - own)
    velocity   <- momentum velocity + difference
    outer      <- outer - rate (difference + momentum velocity)     (Nesterov)
    own        <- outer

with `rate velocity` in the last but one line without Nesterov. Source: Douillard et al.
2023, arXiv:2311.08105, algorithm 1; Sutskever et al. 2013 (Nesterov's momentum).

`TrainState.params` and `stats` are the outer ones: what is evaluated, loaded and said
to be the network. Everything that a step changes besides is a replica's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.primitives import all_reduce
from jaxdist.collectives.reduce import all_reduce_leaves
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.partition.outer_sync import REPLICA_AXIS, OuterSync
from jaxdist.train.nonfinite import SkipState
from jaxdist.train.state import TrainState


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "stats", "opt", "feedback", "velocity"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class ReplicaStates:
    """What replicas have of their own, [replicas, ...], and the outer velocity."""

    params: Any
    """Parameters between outer steps."""
    stats: Any
    """Running statistics between outer steps."""
    opt: Any
    """State of the optimizer."""
    feedback: Any
    """What compressed gradients left, where they are; else None."""
    velocity: Any
    """Velocity of the outer parameters, one for all replicas; None without momentum."""


def check_outer_loop(plan: Plan, state: TrainState) -> None:
    """Refuse what has no meaning where replicas do not talk in a step.

    Raises:
        BadInput: steps that are skipped on all devices alike, or an average of weights.
    """
    if plan.replicas == 1:
        return
    refused = {
        "optim.skip_nonfinite": (isinstance(state.opt, SkipState), _SKIP_RULE),
        "optim.ema": (state.average is not None, _EMA_RULE),
    }
    for key, (asked, rule) in refused.items():
        if asked:
            raise BadInput(
                f"{key} does not go with an outer loop",
                rule=rule,
                values=f"plan.mesh.replica = {plan.mesh.replica}, "
                f"plan.outer.every = {plan.outer.every}",
                remedy=(f"{key}=0", "or without replicas: plan.mesh.replica=1"),
            )


_SKIP_RULE = (
    "a step is skipped on all devices alike, and replicas do not talk in a step"
)
_EMA_RULE = "what is evaluated are the outer parameters, an average already"


def replicate_state(plan: Plan, state: TrainState) -> TrainState:
    """Give every replica its own copy of a state; one replica's is left as it is."""
    if plan.replicas == 1:
        return state

    def each(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x, (plan.replicas, *x.shape))

    own = jax.tree.map(each, (state.params, state.stats, state.opt, state.feedback))
    still = jax.tree.map(jnp.zeros_like, state.params)
    return _with_replicas(state, own, still if plan.outer.momentum else None)


def replicate_specs(plan: Plan, specs: TrainState) -> TrainState:
    """Return the specs of what `replicate_state` returns, from those of its input."""
    if plan.replicas == 1:
        return specs
    given = specs.params, specs.stats, specs.opt, specs.feedback
    own = jax.tree.map(lambda spec: P(REPLICA_AXIS, *spec), given)
    return _with_replicas(specs, own, specs.params if plan.outer.momentum else None)


def _with_replicas(
    state: TrainState, per_replica: Sequence[Any], velocity: Any
) -> TrainState:
    params, stats, opt, feedback = per_replica
    replicas = ReplicaStates(
        params=params, stats=stats, opt=opt, feedback=feedback, velocity=velocity
    )
    return replace(state, opt=None, feedback=None, replicas=replicas)


def per_replica_step(local_step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step of a device, done by each replica on its own state and samples.

    Args:
        local_step: `(state, batch) -> (state, loss)`, of a state without replicas.

    Returns:
        The same of a device's part of a state with replicas; the loss is [1].
    """

    def step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        held = state.replicas
        own = jax.tree.map(
            lambda x: x[0], (held.params, held.stats, held.opt, held.feedback)
        )
        params, stats, opt, feedback = own
        before = replace(
            state, params=params, stats=stats, opt=opt, feedback=feedback, replicas=None
        )
        after, loss = local_step(before, batch)
        moved = jax.tree.map(
            lambda x: x[None], (after.params, after.stats, after.opt, after.feedback)
        )
        return _with_replicas(
            replace(state, step=after.step), moved, held.velocity
        ), loss[None]

    return step


def outer_step(config: OuterConfig, sync: OuterSync, state: TrainState) -> TrainState:
    """Average a fragment over replicas and go on from there, on a device's part."""
    held = state.replicas
    outer, tree = jax.tree.flatten(state.params)
    own, fast = jax.tree.leaves(held.params), jax.tree.leaves(held.velocity)
    places = (*sync.exact_params, *sync.compressed_params)
    with jax.named_scope("outer_step"):
        apart = [outer[p] - own[p][0] for p in places]
        found, stats = _average_differences(sync, apart, held.stats, state.step)
        steps, speeds = _momentum_steps(
            config, found, [fast[p] for p in places if fast]
        )
    for place, step in zip(places, steps, strict=True):
        outer[place] = outer[place] - config.learning_rate * step
        own[place] = outer[place][None]
    for place, speed in zip(places, speeds):
        fast[place] = speed
    replicas = replace(
        held,
        params=jax.tree.unflatten(tree, own),
        velocity=jax.tree.unflatten(jax.tree.structure(held.velocity), fast),
        stats=stats,
    )
    whole = (
        jax.tree.map(lambda x: x[0], stats) if sync.averages_statistics else state.stats
    )
    outers = jax.tree.unflatten(tree, outer)
    return replace(state, params=outers, stats=whole, replicas=replicas)


def _average_differences(
    sync: OuterSync, differences: Sequence[jax.Array], stats: Any, step: jax.Array
) -> tuple[list[jax.Array], Any]:
    """Average differences, those that are packed last, and running statistics."""
    replicas, plain = lax.axis_size(REPLICA_AXIS), len(sync.exact_params)
    running, tree = jax.tree.flatten(stats)
    given = [*differences[:plain], *running * sync.averages_statistics]
    total = all_reduce_leaves(given, [(REPLICA_AXIS,)] * len(given))
    if sync.compressed_params:
        sums = all_reduce(
            differences[plain:], REPLICA_AXIS, sync.algorithm, step=step
        ).total
        total[plain:plain] = sums
    mean = [x / replicas for x in total]
    running = mean[len(differences) :] if sync.averages_statistics else running
    return mean[: len(differences)], jax.tree.unflatten(tree, running)


def _momentum_steps(
    config: OuterConfig, differences: list[jax.Array], velocities: list[jax.Array]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return the steps along mean differences, before the rate, and new velocities."""
    if not config.momentum:
        return differences, velocities
    follow = optax.trace(config.momentum, config.nesterov)
    steps, after = follow.update(differences, optax.TraceState(trace=velocities))
    return steps, after.trace
