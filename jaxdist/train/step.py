"""The step: one program, manual over every axis, that a plan compiles to.

Each device computes its share of the global loss,

    share = mean of its samples' losses / devices over plan.sum_axes

so that the shares of all devices sum to the mean loss. With `check_vma=False`, `grad`
inside the `shard_map` differentiates that sum with respect to the device's own copy of
the parameters (a psum transposes to a psum, a gather to a scattered sum), and the whole
gradient of a leaf is the sum of the copies' gradients over the axes that do not split
it. One rule for every leaf and every split.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.reduce import all_reduce_leaves
from jaxdist.collectives.sharded_leaves import all_gather, local_shard, reduce_scatter
from jaxdist.partition import fsdp
from jaxdist.partition.gradient_buckets import GradientReduction
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.partition.param_sharding import split_axes
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.profile.xla_cpu.backward_reads import saved_leaves
from jaxdist.train import error_feedback
from jaxdist.train.accumulate import GradientFn, accumulate_gradients
from jaxdist.train.diloco import outer_step, per_replica_step
from jaxdist.train.ema import update_ema
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import (
    gather_params,
    merge_model,
    model_inputs,
    prevent_cse,
)
from jaxdist.train.nonfinite import keep_old_if_skipped
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import async_steps, sync_gradients
from jaxdist.train.remat import call_model, maybe_checkpoint, tag_all_blocks
from jaxdist.train.sample_exchange import select_local_samples
from jaxdist.train.sharded_norms import is_masked, leaves_with_masked, local_sum_squares
from jaxdist.train.state import TrainState

UPDATE_SCOPE: Final = "update"
"""Scope of what moves the parameters, as a compiled program has it."""


def make_train_step(
    layout: Layout, reduction: GradientReduction | None = None
) -> Callable[..., Any]:
    """Build `step(state, batch) -> (state, loss)`, to be jitted with `state` donated.

    Args:
        layout: the task, its plan and mesh.
        reduction: how gradients are summed; none: as the layout says.

    Returns:
        A function of a `TrainState` and a global batch (the objective's keys, for one
        `image [B, H, W, C]` and `label [B]`, and `id [B]`), to the next state and the
        mean loss over the batch, NaN where the step was skipped; with an outer loop
        the losses of the replicas [replicas], each over its own samples.
    """
    specs, task = layout.specs, layout.task
    sums = reduction or layout.reduction
    advance = _async_update if layout.plan.pipe.flows else _sync_update

    def local(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        loss, stats, params, opt, left = advance(layout, sums, state, batch)
        step = state.step + 1
        average = update_ema(state.average, task.average, step, params, stats)
        old = state.stats, state.average, state.feedback, jnp.full_like(loss, jnp.nan)
        found = stats, average, left, loss
        stats, average, left, loss = keep_old_if_skipped(opt, found, old)
        new = TrainState(
            step=step,
            params=params,
            stats=stats,
            opt=opt,
            average=average,
            feedback=left,
        )
        return new, loss

    apart = layout.plan.replicas > 1
    each, losses = (per_replica_step(local), P("replica")) if apart else (local, P())
    return lambda state, batch: layout.shard_map(each, specs, batch, (specs, losses))(
        state, batch
    )


def make_outer_step(layout: Layout, sync: OuterSync) -> Callable[..., Any]:
    """Build `join(state) -> state`, an outer step, to be jitted with `state` donated.

    Args:
        layout: the task, its plan and mesh.
        sync: one of the layout's, what is averaged.
    """
    return jax.shard_map(
        functools.partial(outer_step, layout.plan.outer, sync),
        mesh=layout.mesh,
        in_specs=(layout.specs,),
        out_specs=layout.specs,
        check_vma=False,
    )


def _sync_update(
    layout: Layout, reduction: GradientReduction, state: TrainState, batch: Batch
) -> tuple[jax.Array, Any, Any, Any, Any]:
    """Move the parameters along the gradient of the whole batch.

    Returns:
        The loss, new statistics, parameters and optimizer's state, and what
        compressing gradients left.
    """
    gradients = (
        _accumulation_gradients if layout.slot_layout is None else _pipeline_gradients
    )
    loss, stats, grads = gradients(layout, state)(state.stats, batch)
    loss, grads, left = _reduce_gradients(layout, reduction, state, loss, grads)
    params, opt = _apply_optimizer(layout, state.params, state.opt, grads)
    return loss, stats, params, opt, left


def _async_update(
    layout: Layout, reduction: GradientReduction, state: TrainState, batch: Batch
) -> tuple[jax.Array, Any, Any, Any, Any]:
    """Move the parameters of a stage along the gradient of each microbatch.

    Returns:
        As `_sync_update`; the loss is the mean of the microbatches'.
    """

    def move(grads: SlotArrays, opt: Any, params: SlotArrays) -> tuple[SlotArrays, Any]:
        leaves, tree = jax.tree.flatten(grads)
        summed = all_reduce_leaves(leaves, reduction.exact_axes)
        new: tuple[SlotArrays, Any] = _apply_optimizer(
            layout, params, opt, jax.tree.unflatten(tree, summed)
        )
        return new

    losses, stats, params, opt = async_steps.run(layout, state, batch, move)
    (loss,) = all_reduce_leaves([losses.mean()], [layout.plan.sum_axes])
    return loss, stats, params, opt, state.feedback


def _accumulation_gradients(layout: Layout, state: TrainState) -> GradientFn:
    """Return gradients of microbatches one after the other."""
    own = functools.partial(_local_gradients, layout, state)
    return accumulate_gradients(own, layout.task.microbatches)


def _pipeline_gradients(layout: Layout, state: TrainState) -> GradientFn:
    """Return gradients of microbatches that go through the stages of a pipeline."""
    return functools.partial(sync_gradients.pipeline_gradients, layout, state)


def _local_gradients(
    layout: Layout, state: TrainState, stats: Any, batch: Batch
) -> tuple[jax.Array, Any, list[jax.Array]]:
    """Return this device's share of the loss, new statistics, gradients of the share.

    Parameters that fsdp shares out are put together, dropped, and put together once
    more for the backward pass where it reads them; vectors, which are small, are kept.
    """
    task, plan, codec = layout.task, layout.plan, layout.reduction.gather_compressor
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)
    held, tree = jax.tree.flatten(state.params)
    if layout.gathers_params and task.microbatches > 1:
        # The compiler would put them together once, before the loop over microbatches,
        # and keep them; so they seem to depend on the samples of each.
        held = prevent_cse(held, batch["id"][0], batch["id"])

    def make(leaves: list[jax.Array], stats: Any) -> Any:
        model = merge_model(task, jax.tree.unflatten(tree, leaves), stats)
        model.train()
        layout.bind_layers(model, key, batch["id"])
        tag_all_blocks(plan, model)
        return model

    def share(leaves: list[jax.Array]) -> tuple[jax.Array, Any]:
        outputs, new = call_model(plan, make, leaves, stats, model_inputs(task, batch))
        outputs, own_batch = select_local_samples(plan, outputs, batch)
        mean = layout.objective.losses(outputs, own_batch).mean()
        return mean / plan.mesh.size(*plan.sum_axes), new

    back: Any
    loss, back, new = jax.vjp(
        maybe_checkpoint(plan, share), gather_params(layout, held, codec), has_aux=True
    )
    if layout.gathers_params:
        wanted = [
            need and x.ndim > 1
            for need, x in zip(saved_leaves(back), held, strict=True)
        ]
        again = gather_params(
            layout, prevent_cse(held, state.step, loss), codec, wanted
        )
        kept = zip(again, back.args_res[0], wanted, strict=True)
        back.args_res[0] = [x if want else was for x, was, want in kept]
    (grads,) = back(jnp.ones_like(loss))
    return loss, new, grads


def _reduce_gradients(
    layout: Layout,
    reduction: GradientReduction,
    state: TrainState,
    loss: jax.Array,
    grads: list[jax.Array],
) -> tuple[jax.Array, Any, Any]:
    """Sum the loss and every gradient, to the shards that this device moves.

    Returns:
        The loss, the gradients, and what compressing them left.
    """
    plan = layout.plan
    params, names = (
        layout.replica_state_shapes.params,
        [leaf.name for leaf in layout.param_shardings],
    )
    dealt, dims = grads, layout.fsdp_dims
    if layout.shards_params:
        dealt = reduce_scatter(
            grads, dims, fsdp.FSDP_AXIS, reduction.scatter_compressor
        )
    leaves = [
        x.astype(leaf.dtype)
        for x, leaf in zip(dealt, layout.param_shardings, strict=True)
    ]
    over = [plan.sum_axes, *reduction.exact_axes]
    loss, *leaves = all_reduce_leaves([loss, *leaves], over)
    leaves, left = error_feedback.all_reduce_compressed(
        plan.reduce, reduction, names, leaves, state.feedback, state.step
    )
    return loss, jax.tree.unflatten(jax.tree.structure(params), leaves), left


def _apply_optimizer(
    layout: Layout, before: Any, opt: Any, grads: Any
) -> tuple[Any, Any]:
    """Return the parameters moved along the gradients, and the optimizer's state."""
    held, tree = jax.tree.flatten(before)
    apart = layout.shards_params and not layout.gathers_params
    if apart:
        held = local_shard(held, layout.fsdp_dims, fsdp.FSDP_AXIS)
    params = jax.tree.unflatten(tree, held)
    # optax counts steps in int32 and lets jax promote them, also where a user or a
    # test has asked for strict promotion.
    move = optax.with_extra_args_support(layout.task.optimizer)
    squares = functools.partial(_global_squares, layout)
    total = functools.partial(_sum_over_stages, layout)
    with jax.numpy_dtype_promotion("standard"), jax.named_scope(UPDATE_SCOPE):
        updates, opt = move.update(grads, opt, params, squares=squares, total=total)
        params = optax.apply_updates(params, updates)
    if apart:
        leaves = all_gather(jax.tree.leaves(params), layout.fsdp_dims, fsdp.FSDP_AXIS)
        params = jax.tree.unflatten(tree, leaves)
    return params, opt


def _global_squares(layout: Layout, tree: Any) -> Any:
    """Sum the squares of each leaf over the devices that split it."""
    own, shape = jax.tree.flatten(local_sum_squares(tree))
    given = zip(layout.param_shardings, leaves_with_masked(tree), strict=True)
    over = [split_axes(leaf) for leaf, x in given if not is_masked(x)]
    with jax.named_scope("whole_lengths"):
        return jax.tree.unflatten(shape, all_reduce_leaves(own, over))


def _sum_over_stages(layout: Layout, squares: Any) -> jax.Array:
    """Sum over the leaves of all stages; those that all devices have count once."""
    pairs = list(zip(layout.param_shardings, jax.tree.leaves(squares), strict=True))
    total = optax.tree.sum([x for leaf, x in pairs if leaf.pipe_dim is None])
    own = [x for leaf, x in pairs if leaf.pipe_dim is not None]
    if not own:
        return total
    with jax.named_scope("whole_lengths"):
        return total + lax.psum(optax.tree.sum(own), "pipe")
