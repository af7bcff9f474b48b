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
from jaxdist.partition.global_norm_axes import axes_of
from jaxdist.partition.gradient_buckets import GradientReduction
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.profile.xla_cpu.backward_reads import needed
from jaxdist.train import error_feedback
from jaxdist.train.accumulate import GradientFn, accumulated
from jaxdist.train.diloco import alone, outer_step
from jaxdist.train.ema import moved
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import inputs_of, later, model_of, whole
from jaxdist.train.nonfinite import unless_skipped
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import async_steps, sync_gradients
from jaxdist.train.remat import called, graded, mark_all
from jaxdist.train.sample_exchange import scored
from jaxdist.train.sharded_norms import leaves_in, masked, own_squares
from jaxdist.train.state import TrainState

UPDATE: Final = "update"
"""Scope of what moves the parameters, as a compiled program has it."""


def train_step(
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
    advance = _flowing if layout.plan.pipe.flows else _at_once

    def local(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        loss, stats, params, opt, left = advance(layout, sums, state, batch)
        step = state.step + 1
        average = moved(state.average, task.average, step, params, stats)
        old = state.stats, state.average, state.feedback, jnp.full_like(loss, jnp.nan)
        found = stats, average, left, loss
        stats, average, left, loss = unless_skipped(opt, found, old)
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
    each, losses = (alone(local), P("replica")) if apart else (local, P())
    return lambda state, batch: layout.map(each, specs, batch, (specs, losses))(
        state, batch
    )


def sync_step(layout: Layout, sync: OuterSync) -> Callable[..., Any]:
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


def _at_once(
    layout: Layout, sums: GradientReduction, state: TrainState, batch: Batch
) -> tuple[jax.Array, Any, Any, Any, Any]:
    """Move the parameters along the gradient of the whole batch.

    Returns:
        The loss, new statistics, parameters and optimizer's state, and what
        compressing gradients left.
    """
    gradients = _in_turn if layout.pipe is None else _in_stages
    loss, stats, grads = gradients(layout, state)(state.stats, batch)
    loss, grads, left = _reduced(layout, sums, state, loss, grads)
    params, opt = _moved(layout, state.params, state.opt, grads)
    return loss, stats, params, opt, left


def _flowing(
    layout: Layout, sums: GradientReduction, state: TrainState, batch: Batch
) -> tuple[jax.Array, Any, Any, Any, Any]:
    """Move the parameters of a stage along the gradient of each microbatch.

    Returns:
        As `_at_once`; the loss is the mean of the microbatches'.
    """

    def move(grads: SlotArrays, opt: Any, params: SlotArrays) -> tuple[SlotArrays, Any]:
        leaves, tree = jax.tree.flatten(grads)
        summed = all_reduce_leaves(leaves, sums.exactly)
        new: tuple[SlotArrays, Any] = _moved(
            layout, params, opt, jax.tree.unflatten(tree, summed)
        )
        return new

    losses, stats, params, opt = async_steps.run(layout, state, batch, move)
    (loss,) = all_reduce_leaves([losses.mean()], [layout.plan.sum_axes])
    return loss, stats, params, opt, state.feedback


def _in_turn(layout: Layout, state: TrainState) -> GradientFn:
    """Return gradients of microbatches one after the other."""
    own = functools.partial(_gradients, layout, state)
    return accumulated(own, layout.task.microbatches)


def _in_stages(layout: Layout, state: TrainState) -> GradientFn:
    """Return gradients of microbatches that go through the stages of a pipeline."""
    return functools.partial(sync_gradients.gradients, layout, state)


def _gradients(
    layout: Layout, state: TrainState, stats: Any, batch: Batch
) -> tuple[jax.Array, Any, list[jax.Array]]:
    """Return this device's share of the loss, new statistics, gradients of the share.

    Parameters that fsdp shares out are put together, dropped, and put together once
    more for the backward pass where it reads them; vectors, which are small, are kept.
    """
    task, plan, codec = layout.task, layout.plan, layout.reduction.gather
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)
    held, tree = jax.tree.flatten(state.params)
    if layout.joins and task.microbatches > 1:
        # The compiler would put them together once, before the loop over microbatches,
        # and keep them; so they seem to depend on the samples of each.
        held = later(held, batch["id"][0], batch["id"])

    def make(leaves: list[jax.Array], stats: Any) -> Any:
        model = model_of(task, jax.tree.unflatten(tree, leaves), stats)
        model.train()
        layout.bind(model, key, batch["id"])
        mark_all(plan, model)
        return model

    def share(leaves: list[jax.Array]) -> tuple[jax.Array, Any]:
        outputs, new = called(plan, make, leaves, stats, inputs_of(task, batch))
        outputs, own_batch = scored(plan, outputs, batch)
        mean = layout.objective.losses(outputs, own_batch).mean()
        return mean / plan.mesh.size(*plan.sum_axes), new

    back: Any
    loss, back, new = jax.vjp(
        graded(plan, share), whole(layout, held, codec), has_aux=True
    )
    if layout.joins:
        wanted = [
            need and x.ndim > 1 for need, x in zip(needed(back), held, strict=True)
        ]
        again = whole(layout, later(held, state.step, loss), codec, wanted)
        kept = zip(again, back.args_res[0], wanted, strict=True)
        back.args_res[0] = [x if want else was for x, was, want in kept]
    (grads,) = back(jnp.ones_like(loss))
    return loss, new, grads


def _reduced(
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
    params, names = layout.held.params, [leaf.name for leaf in layout.leaves]
    dealt, dims = grads, layout.shared_dims
    if layout.shares:
        dealt = reduce_scatter(grads, dims, fsdp.AXIS, reduction.scatter)
    leaves = [
        x.astype(leaf.dtype) for x, leaf in zip(dealt, layout.leaves, strict=True)
    ]
    over = [plan.sum_axes, *reduction.exactly]
    loss, *leaves = all_reduce_leaves([loss, *leaves], over)
    leaves, left = error_feedback.summed(
        plan.reduce, reduction, names, leaves, state.feedback, state.step
    )
    return loss, jax.tree.unflatten(jax.tree.structure(params), leaves), left


def _moved(layout: Layout, before: Any, opt: Any, grads: Any) -> tuple[Any, Any]:
    """Return the parameters moved along the gradients, and the optimizer's state."""
    held, tree = jax.tree.flatten(before)
    apart = layout.shares and not layout.joins
    if apart:
        held = local_shard(held, layout.shared_dims, fsdp.AXIS)
    params = jax.tree.unflatten(tree, held)
    # optax counts steps in int32 and lets jax promote them, also where a user or a
    # test has asked for strict promotion.
    move = optax.with_extra_args_support(layout.task.optimizer)
    squares = functools.partial(_squares, layout)
    total = functools.partial(_total, layout)
    with jax.numpy_dtype_promotion("standard"), jax.named_scope(UPDATE):
        updates, opt = move.update(grads, opt, params, squares=squares, total=total)
        params = optax.apply_updates(params, updates)
    if apart:
        leaves = all_gather(jax.tree.leaves(params), layout.shared_dims, fsdp.AXIS)
        params = jax.tree.unflatten(tree, leaves)
    return params, opt


def _squares(layout: Layout, tree: Any) -> Any:
    """Sum the squares of each leaf over the devices that split it."""
    own, shape = jax.tree.flatten(own_squares(tree))
    given = zip(layout.leaves, leaves_in(tree), strict=True)
    over = [axes_of(leaf) for leaf, x in given if not masked(x)]
    with jax.named_scope("whole_lengths"):
        return jax.tree.unflatten(shape, all_reduce_leaves(own, over))


def _total(layout: Layout, squares: Any) -> jax.Array:
    """Sum over the leaves of all stages; those that all devices have count once."""
    pairs = list(zip(layout.leaves, jax.tree.leaves(squares), strict=True))
    total = optax.tree.sum([x for leaf, x in pairs if leaf.pipe is None])
    own = [x for leaf, x in pairs if leaf.pipe is not None]
    if not own:
        return total
    with jax.named_scope("whole_lengths"):
        return total + lax.psum(optax.tree.sum(own), "pipe")
