"""The training step: one program, manual over every mesh axis.

Each device computes its share of the global loss,

    share = mean of its samples' losses / devices over plan.sum_axes

so that the shares of all devices sum to the mean loss. With `check_vma=False`, `grad`
inside the `shard_map` differentiates that sum with respect to the device's own copy of
the parameters (a psum transposes to a psum, an all-gather to a reduce-scatter), and the
whole gradient of a leaf is the sum of the copies' gradients over the axes that do not
split it. One rule for every leaf and every split.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.sharded_leaves import (
    all_gather,
    all_gather_array,
    local_shard,
)
from jaxdist.partition.gradient_buckets import GradientReduction, all_reduce_leaves
from jaxdist.partition.ledger import MATRIX_SCOPE
from jaxdist.partition.param_sharding import FSDP_AXIS, LeafSharding, split_axes
from jaxdist.partition.variable_sync import sync_axes, sync_variables
from jaxdist.pipeline import async_executor
from jaxdist.pipeline.async_executor import AsyncPipeline
from jaxdist.pipeline.plan_schedule import async_plan_schedule
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.train import error_feedback
from jaxdist.train.adafactor import local_means
from jaxdist.train.diloco import per_replica_step
from jaxdist.train.expert_metrics import routing_scalars
from jaxdist.train.layout import Layout
from jaxdist.train.local_gradients import local_gradients
from jaxdist.train.materialize_params import (
    accumulate_gradients,
)
from jaxdist.train.nonfinite import (
    inf_unless_finite,
    keep_old_if_skipped,
    nan_unless_finite,
)
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import sync_gradients
from jaxdist.train.schedule_free import gradient_params
from jaxdist.train.sharded_norms import (
    global_norm,
    is_masked,
    leaves_with_masked,
    local_sum_squares,
    memoize_sums,
)
from jaxdist.train.state import TrainState, update_ema
from jaxdist.train.step_metrics import GRADIENT_NORM, StepMetrics

UPDATE_SCOPE: Final = "update"
"""Named scope of the optimizer's operations in a compiled program."""


def make_train_step(
    layout: Layout, reduction: GradientReduction | None = None
) -> Callable[..., Any]:
    """Build `step(state, batch) -> (state, metrics)`, to jit with `state` donated.

    Args:
        layout: task, plan and mesh.
        reduction: how gradients are summed; by default as the layout says.

    Returns:
        A function of a `TrainState` and a global batch (the objective's keys, for one
        `image [B, H, W, C]` and `label [B]`, and `id [B]`), to the next state and its
        `StepMetrics`: the mean loss over the batch, NaN where a gradient is not finite,
        so also where the step was skipped, and infinity on devices whose part of the
        new state is not; with an outer loop those of the replicas [replicas], each over
        its own samples.
    """
    specs, task = layout.specs, layout.task
    sums = reduction or layout.reduction
    update = _async_update if layout.plan.pipe.flows else _sync_update

    def local(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        metrics, stats, params, opt, feedback = update(layout, sums, state, batch)
        loss = metrics.loss
        scalars = {**metrics.scalars, **routing_scalars(layout, stats)}
        step = state.step + 1
        average = update_ema(state.average, task.average, step, params, stats)
        # The optimizer keeps the parameters of a skipped step; here the rest is kept.
        old = state.stats, state.average, state.feedback, jnp.full_like(loss, jnp.nan)
        new = stats, average, feedback, loss
        stats, average, feedback, loss = keep_old_if_skipped(opt, new, old)
        after = TrainState(
            step=step,
            params=params,
            stats=stats,
            opt=opt,
            average=average,
            feedback=feedback,
        )
        # A GPU's compiler would make one kernel of the update and of the sums that look
        # at it, which moves memory at a fraction of its rate; a TPU's does it well.
        seen = lax.optimization_barrier(after) if layout.platform == "gpu" else after
        loss = inf_unless_finite(loss, seen, state.stats)
        return after, StepMetrics(loss=loss, scalars=scalars)

    replicas = layout.plan.replicas > 1
    body, losses = (per_replica_step(local), P("replica")) if replicas else (local, P())
    return lambda state, batch: layout.shard_map(body, specs, batch, (specs, losses))(
        state, batch
    )


def _sync_update(
    layout: Layout, reduction: GradientReduction, state: TrainState, batch: Batch
) -> tuple[StepMetrics, Any, Any, Any, Any]:
    """Move the parameters along the gradient of the whole batch.

    Returns:
        Metrics, new statistics, parameters, optimizer state and error feedback.
    """
    plan = layout.plan
    at = replace(state, params=gradient_params(state.params, state.opt))
    if layout.slot_layout is None:
        # Microbatches one after the other; else they go through the pipeline's stages.
        own = functools.partial(local_gradients, layout, reduction, at)
        gradient_fn = accumulate_gradients(own, layout.task.microbatches)
    else:
        gradient_fn = functools.partial(sync_gradients.pipeline_gradients, layout, at)
    loss, stats, grads = gradient_fn(state.stats, batch)
    stats = _sync_stats(layout, stats)
    # jax.grad returns the conjugate of the direction of steepest ascent.
    grads = [jnp.conj(x) for x in grads]
    # Before the sums: that of the loss tells all devices, and no sum is added.
    loss = nan_unless_finite(loss, grads)

    # Gradients are summed to the shards that this device updates: over fsdp by a
    # reduce-scatter, over the other axes exactly or compressed.
    shardings = layout.param_shardings
    if layout.shards_params:
        # Those of blocks in loops were scattered there.
        looped = layout.scanned_params
        dims = [None if i in looped else d for i, d in enumerate(layout.fsdp_dims)]
        grads = reduction.scatter(grads, dims)
    # So far they have the dtype that parameters were gathered in, or that of sums.
    grads = [x.astype(leaf.dtype) for x, leaf in zip(grads, shardings, strict=True)]
    axes = [plan.sum_axes, *reduction.exact_axes]
    # The loss is packed with the vectors of the same axes and dtype: a scalar alone
    # would be a collective of its own.
    loss, *grads = all_reduce_leaves([loss, *grads], axes)
    names = [leaf.name for leaf in shardings]
    grads, feedback = error_feedback.all_reduce_compressed(
        plan.reduce, reduction, names, grads, state.feedback, state.step
    )
    tree = jax.tree.structure(layout.replica_state_shapes.params)
    params, opt, scalars = _apply_optimizer(
        layout, state.params, state.opt, jax.tree.unflatten(tree, grads)
    )
    return StepMetrics(loss=loss, scalars=scalars), stats, params, opt, feedback


def _async_update(
    layout: Layout, reduction: GradientReduction, state: TrainState, batch: Batch
) -> tuple[StepMetrics, Any, Any, Any, Any]:
    """Move the parameters of a stage along the gradient of each microbatch.

    Returns:
        As `_sync_update`; the loss is the mean of the microbatches', and there is no
        gradient of the whole step.
    """

    def update(
        grads: SlotArrays, opt: Any, params: SlotArrays
    ) -> tuple[SlotArrays, Any]:
        leaves, tree = jax.tree.flatten(jax.tree.map(jnp.conj, grads))
        summed = all_reduce_leaves(leaves, reduction.exact_axes)
        params, opt, _ = _apply_optimizer(
            layout, params, opt, jax.tree.unflatten(tree, summed)
        )
        return params, opt

    pipe, parts = sync_gradients.make_training_pipeline(layout, state, batch)
    stream = async_plan_schedule(layout.plan, layout.task.microbatches)
    whole = AsyncPipeline(pipe=pipe, stream=stream, move=update)
    losses, stats, params, opt = async_executor.run(
        whole, state.params, state.opt, state.stats, parts
    )
    stats = _sync_stats(layout, stats)
    # Before the sum, which tells all devices what one of them has in its stage.
    loss = nan_unless_finite(losses.mean(), params, opt)
    (loss,) = all_reduce_leaves([loss], [layout.plan.sum_axes])
    return StepMetrics(loss=loss), stats, params, opt, state.feedback


def _sync_stats(layout: Layout, stats: Any) -> Any:
    """Return what a network keeps besides its parameters, alike on all devices."""
    leaves, tree = jax.tree.flatten(stats)
    held = layout.state_layout.stat_shardings
    axes = sync_axes(layout.plan, held)
    return jax.tree.unflatten(tree, sync_variables(leaves, held, axes))


def _apply_optimizer(
    layout: Layout, params: Any, opt: Any, grads: Any
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """Return the parameters moved along the gradients, and the optimizer's state.

    And what the step tells of the gradients, by the name of its column.
    """
    # With zero = 1 parameters are whole and the optimizer's state is sharded: a device
    # updates its shard, and gathers the others'.
    whole = layout.shards_params and not layout.gathers_params
    leaves, tree = jax.tree.flatten(params)
    if whole:
        leaves = local_shard(leaves, layout.fsdp_dims, FSDP_AXIS)
    params = jax.tree.unflatten(tree, leaves)
    # optax counts steps in int32 and lets jax promote them, also where a user or a
    # test has asked for strict promotion.
    move = optax.with_extra_args_support(layout.task.optimizer)
    squares = memoize_sums(functools.partial(_global_squares, layout))
    total = memoize_sums(functools.partial(_sum_over_stages, layout))
    scalars: dict[str, jax.Array] = {}
    with jax.numpy_dtype_promotion("standard"), jax.named_scope(UPDATE_SCOPE):
        if layout.has_gradient_norm:
            scalars[GRADIENT_NORM] = global_norm(grads, squares, total)
        updates, opt = move.update(
            grads,
            opt,
            params,
            squares=squares,
            total=total,
            unshard=functools.partial(_unshard, layout),
            shard=functools.partial(_shard, layout),
            means=functools.partial(_whole_means, layout),
            sizes=functools.partial(_whole_sizes, layout),
        )
        params = optax.apply_updates(params, updates)
    if whole:
        leaves = all_gather(
            jax.tree.leaves(params),
            layout.fsdp_dims,
            FSDP_AXIS,
            inner=layout.reduction.gather_inner,
        )
        params = jax.tree.unflatten(tree, leaves)
    return params, opt, scalars


def _global_squares(layout: Layout, tree: Any) -> Any:
    """Sum the squares of each leaf over the devices that split it."""
    # Leaves that are masked have no sum, and no axes to sum over.
    own, shape = jax.tree.flatten(local_sum_squares(tree))
    given = zip(layout.param_shardings, leaves_with_masked(tree), strict=True)
    over = [split_axes(leaf) for leaf, x in given if not is_masked(x)]
    with jax.named_scope("whole_lengths"):
        return jax.tree.unflatten(shape, all_reduce_leaves(own, over))


def _whole_means(layout: Layout, tree: Any, dim: int) -> Any:
    """Return the mean of each whole leaf over a dim, which stays as one row."""
    own, shape = jax.tree.flatten(local_means(tree, dim))
    given = zip(layout.param_shardings, leaves_with_masked(tree), strict=True)
    axes = [leaf.spec()[dim] for leaf, x in given if not is_masked(x)]
    parts = [
        x / layout.plan.mesh.size(axis) if axis else x
        for x, axis in zip(own, axes, strict=True)
    ]
    over = [(axis,) if axis else () for axis in axes]
    with jax.named_scope("whole_lengths"):
        return jax.tree.unflatten(shape, all_reduce_leaves(parts, over))


def _whole_sizes(layout: Layout, tree: Any) -> Any:
    """Return how many numbers each whole leaf has."""
    return _map_split_leaves(layout, lambda leaf, x: math.prod(leaf.shape), tree)


def _unshard(layout: Layout, tree: Any) -> Any:
    """Gather each leaf over the axes that split it."""

    def gather(leaf: LeafSharding, x: jax.Array) -> jax.Array:
        for axis in split_axes(leaf):
            x = all_gather_array(x, axis, leaf.spec().index(axis))
        return x

    with jax.named_scope(MATRIX_SCOPE):
        return _map_split_leaves(layout, gather, tree)


def _shard(layout: Layout, tree: Any) -> Any:
    """Keep this device's part of each leaf: `_unshard`, undone."""

    def keep(leaf: LeafSharding, x: jax.Array) -> jax.Array:
        for axis in split_axes(leaf):
            (x,) = local_shard([x], [leaf.spec().index(axis)], axis)
        return x

    return _map_split_leaves(layout, keep, tree)


def _map_split_leaves(
    layout: Layout, move: Callable[[LeafSharding, jax.Array], Any], tree: Any
) -> Any:
    """Map leaves with their shardings; masked ones are none."""
    own, shape = jax.tree.flatten(tree)
    given = zip(layout.param_shardings, leaves_with_masked(tree), strict=True)
    leaves = [leaf for leaf, x in given if not is_masked(x)]
    return jax.tree.unflatten(shape, map(move, leaves, own))


def _sum_over_stages(layout: Layout, squares: Any) -> jax.Array:
    """Sum over the leaves of all stages; those on all devices count once."""
    pairs = list(zip(layout.param_shardings, jax.tree.leaves(squares), strict=True))
    # Slots have a dim along pipe, with a stage's own leaves; other leaves are on all
    # stages.
    total = optax.tree.sum([x for leaf, x in pairs if leaf.pipe_dim is None])
    own = [x for leaf, x in pairs if leaf.pipe_dim is not None]
    if not own:
        return total
    with jax.named_scope("whole_lengths"):
        return total + lax.psum(optax.tree.sum(own), "pipe")
