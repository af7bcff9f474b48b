"""The outer loop of DiLoCo: replicas that train on their own, and their outer steps.

    difference <- mean over replicas of (outer - own)
    velocity   <- momentum velocity + difference
    outer      <- outer - rate (difference + momentum velocity)     (Nesterov)
    own        <- outer

with `rate velocity` in the last but one line without Nesterov. Source: Douillard et al.
2023, arXiv:2311.08105, algorithm 1; Sutskever et al. 2013 (Nesterov's momentum).

SparseLoCo: each replica sends part of its difference and keeps the rest.

    due        <- decay rest + (outer - own)
    sent       <- the largest of each chunk of due, in 2 bits
    rest       <- due - sent
    outer      <- outer - rate (mean over replicas of sent)

Source: Sarfi et al. 2025, arXiv:2508.15706, algorithm 1.

`TrainState.params` and `stats` are the outer ones, which are evaluated and loaded.
Everything else that a step changes is a replica's own.
"""

import itertools
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
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.partition.gradient_buckets import all_reduce_leaves
from jaxdist.partition.outer_sync import REPLICA_AXIS, OuterSync, outer_axes
from jaxdist.partition.variable_sync import sync_variables
from jaxdist.train.nonfinite import SkipState
from jaxdist.train.state import TrainState
from jaxdist.train.step_metrics import StepMetrics


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "stats", "opt", "feedback", "velocity", "outer_feedback"),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class ReplicaStates:
    """States of the replicas, [replicas, ...], and the outer velocity."""

    params: Any
    """Parameters between outer steps."""
    stats: Any
    """Running statistics between outer steps."""
    opt: Any
    """State of the optimizer."""
    feedback: Any
    """Error feedback of compressed gradients; None without compression."""
    velocity: Any
    """Velocity of the outer parameters, one for all replicas; None without momentum."""
    outer_feedback: Any = None
    """What a replica has not sent of its differences, as its parameters; None without
    error feedback in the outer loop."""


def check_outer_loop(plan: Plan, state: TrainState) -> None:
    """Check that a task goes with replicas that do not communicate in a step.

    Raises:
        BadInput: skipped steps, or an average of weights.
    """
    if plan.replicas == 1:
        return
    refused = {
        "optim.skip_nonfinite": (
            isinstance(state.opt, SkipState),
            "a step is skipped on all devices alike, and replicas do not talk in a "
            "step",
        ),
        "optim.ema": (
            state.average is not None,
            "what is evaluated are the outer parameters, an average already",
        ),
    }
    for key, (asked, rule) in refused.items():
        if asked:
            raise BadInput(
                f"{key} does not go with an outer loop",
                rule=rule,
                values=f"plan.mesh.replica = {plan.mesh.replica}, "
                f"plan.outer.sync_interval = {plan.outer.sync_interval}",
                remedy=(f"{key}=0", "or without replicas: plan.mesh.replica=1"),
            )


def replicate_state(plan: Plan, state: TrainState) -> TrainState:
    """Return a state with a copy of it for every replica, if there are several."""
    if plan.replicas == 1:
        return state

    def each(x: jax.Array) -> jax.Array:
        # XLA places an array without elements nowhere: it is one for all replicas.
        return jnp.broadcast_to(x, (plan.replicas, *x.shape)) if x.size else x

    # The velocity is one for all replicas: they compute the same outer step.
    own = jax.tree.map(each, (state.params, state.stats, state.opt, state.feedback))
    still = jax.tree.map(jnp.zeros_like, state.params)
    velocity = still if plan.outer.momentum else None
    rest = jax.tree.map(each, still) if plan.outer.has_feedback else None
    return _with_replicas(state, own, velocity, rest)


def replicate_specs(plan: Plan, specs: TrainState) -> TrainState:
    """Return the specs of what `replicate_state` returns, from those of its input."""
    if plan.replicas == 1:
        return specs
    given = specs.params, specs.stats, specs.opt, specs.feedback
    own = jax.tree.map(lambda spec: P(REPLICA_AXIS, *spec), given)
    velocity = specs.params if plan.outer.momentum else None
    return _with_replicas(
        specs, own, velocity, own[0] if plan.outer.has_feedback else None
    )


def _with_replicas(
    state: TrainState, per_replica: Sequence[Any], velocity: Any, outer_feedback: Any
) -> TrainState:
    params, stats, opt, feedback = per_replica
    replicas = ReplicaStates(
        params=params,
        stats=stats,
        opt=opt,
        feedback=feedback,
        velocity=velocity,
        outer_feedback=outer_feedback,
    )
    return replace(state, opt=None, feedback=None, replicas=replicas)


def per_replica_step(local_step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a device's step on the state and samples of its replica.

    Args:
        local_step: `(state, batch) -> (state, metrics)`, of a state without replicas.

    Returns:
        The same of a device's part of a state with replicas; the metrics are [1].
    """

    # A device's part of the replicas' arrays is [1, ...].
    def step(state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        held = state.replicas
        params, stats, opt, feedback = jax.tree.map(
            _drop_replica_dim, (held.params, held.stats, held.opt, held.feedback)
        )
        before = replace(
            state, params=params, stats=stats, opt=opt, feedback=feedback, replicas=None
        )
        after, metrics = local_step(before, batch)
        moved = jax.tree.map(
            lambda x: x[None] if x.size else x,
            (after.params, after.stats, after.opt, after.feedback),
        )
        # Outer parameters stay: an outer step alone moves them.
        state = replace(state, step=after.step)
        state = _with_replicas(state, moved, held.velocity, held.outer_feedback)
        own: StepMetrics = jax.tree.map(lambda x: x[None], metrics)
        return state, own

    return step


def _drop_replica_dim(x: jax.Array) -> jax.Array:
    """Return the array of one replica, from a device's part [1, ...] of all."""
    return x[0] if x.size else x


def outer_step(config: OuterConfig, sync: OuterSync, state: TrainState) -> TrainState:
    """Average a fragment over replicas and continue from there, on a device's part."""
    held = state.replicas
    outer, tree = jax.tree.flatten(state.params)
    own, velocity = jax.tree.leaves(held.params), jax.tree.leaves(held.velocity)
    rest, rest_tree = jax.tree.flatten(held.outer_feedback)
    compressed = list(itertools.chain(*sync.compressed_params))
    places = (*sync.exact_params, *compressed)
    exact = len(sync.exact_params)
    with jax.named_scope("outer_step"):
        # Exact differences and running statistics in one sum, compressed differences in
        # others.
        replicas = lax.axis_size(REPLICA_AXIS)
        differences = [outer[p] - own[p][0] for p in places]
        if config.has_feedback:
            for i, p in enumerate(compressed, exact):
                differences[i] += config.feedback_decay * rest[p][0]
        running, stat_tree = jax.tree.flatten(held.stats)
        given = [*differences[:exact], *(running[p] for p in sync.averaged_stats)]
        total = all_reduce_leaves(given, [(REPLICA_AXIS,)] * len(given))
        sums: list[jax.Array] = []
        for group in sync.compressed_params:
            start = exact + len(sums)
            due = differences[start : start + len(group)]
            found = all_reduce(due, REPLICA_AXIS, sync.algorithm, step=state.step)
            sums += found.total
            if config.has_feedback:
                pairs = zip(due, found.contributions, strict=True)
                for p, (x, sent) in zip(group, pairs, strict=True):
                    rest[p] = (x - sent)[None]
        # Between the exact ones and the statistics, so in the order of `places`.
        total[exact:exact] = sums
        mean = [x / replicas for x in total]
        steps = mean[: len(places)]
        for place, average in zip(sync.averaged_stats, mean[len(places) :]):
            running[place] = average
        if kept := sync.synced_stats:
            running = sync_variables(running, kept, outer_axes(kept))
        stats = jax.tree.unflatten(stat_tree, running)
        moved = [velocity[p] for p in places if velocity]
        if config.momentum:
            follow = optax.trace(config.momentum, config.nesterov)
            steps, trace = follow.update(steps, optax.TraceState(trace=moved))
            moved = trace.trace
    for place, step in zip(places, steps, strict=True):
        # `step` is a difference outer - own, so it is subtracted as a gradient is.
        outer[place] = outer[place] - config.learning_rate * step
        # The inner optimizer's state stays a replica's own, as in algorithm 1.
        own[place] = outer[place][None]
    for place, speed in zip(places, moved):
        velocity[place] = speed
    after = replace(
        held,
        params=jax.tree.unflatten(tree, own),
        velocity=jax.tree.unflatten(jax.tree.structure(held.velocity), velocity),
        stats=stats,
        outer_feedback=jax.tree.unflatten(rest_tree, rest),
    )
    # Statistics join the last sync of a period: till then those that are evaluated
    # stay as they are.
    outer_stats = state.stats
    if sync.synced_stats:
        outer_stats = jax.tree.map(_drop_replica_dim, stats)
    return replace(
        state,
        params=jax.tree.unflatten(tree, outer),
        stats=outer_stats,
        replicas=after,
    )
