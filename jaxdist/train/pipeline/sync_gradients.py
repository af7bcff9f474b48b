"""Piped: gradients and scores of a layout whose network is cut into stages."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.sharded_leaves import all_gather
from jaxdist.core.axes import BATCH_AXES
from jaxdist.core.plan import Plan
from jaxdist.partition import fsdp
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline import sync_executor
from jaxdist.pipeline.flat_messages import (
    FlatTreeSpec,
    buffer_bytes,
    flat_tree_spec,
    max_lengths,
)
from jaxdist.pipeline.plan_schedule import evaluation_supersteps, plan_schedule
from jaxdist.pipeline.schedule_arrays import schedule_arrays
from jaxdist.pipeline.stage import Pipeline, PipelineStage, cotangent_spec
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout
from jaxdist.pipeline.stages import network_outputs
from jaxdist.pipeline.stages import run as run_blocks
from jaxdist.pipeline.work_item import Supersteps
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace_cache import TraceCache
from jaxdist.train.accumulate import split_microbatches
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import (
    merge_model,
    model_inputs,
    select_local_samples,
)
from jaxdist.train.objective import Batch
from jaxdist.train.remat import (
    maybe_checkpoint,
    partial_remat_blocks,
    run_with_partial_remat,
    tag_all_blocks,
)
from jaxdist.train.state import TrainState, named_leaves
from jaxdist.train.state_layout import SlotStateLayout

_SAMPLE_ONLY_AXES: Final = ("replica", "pipe", *BATCH_AXES)
"""Axes whose sizes change nothing but the samples of a microbatch."""

LastStageFn = Callable[[Any, Batch], Any]
"""From a network's outputs and what they are scored against to what a stage returns."""


def pipeline_gradients(
    layout: Layout, state: TrainState, stats: SlotArrays, batch: Batch
) -> tuple[jax.Array, Any, list[jax.Array]]:
    """Return this device's share of the loss, new statistics, gradients of the share.

    Args:
        layout: its network is cut into stages.
        state: what this device holds.
        stats: its running statistics.
        batch: this device's samples.
    """
    pipe, parts = make_training_pipeline(layout, state, batch)
    loss, stats, grads = sync_executor.run(
        pipe, gather_slot_params(layout, state.params), stats, parts
    )
    return loss, stats, jax.tree.leaves(grads)


def pipeline_eval(
    layout: Layout,
    params: SlotArrays,
    stats: SlotArrays,
    batch: Batch,
    last_stage_fn: LastStageFn,
) -> Any:
    """Sum the scores of a batch over stages: zero but on devices of the last.

    Args:
        layout: its network is cut into stages.
        params: what this device holds.
        stats: its running statistics.
        batch: this device's samples.
        last_stage_fn: scores outputs, as a tree of sums over samples.
    """
    samples, devices = batch["id"].shape[0], layout.plan.mesh.pipe
    micro = devices if samples % devices == 0 else 1
    pipe = _make_pipeline(
        layout, evaluation_supersteps(layout.plan, micro), last_stage_fn, None
    )
    parts = {name: split_microbatches(x, micro) for name, x in batch.items()}
    return sync_executor.run_forward(
        pipe, gather_slot_params(layout, params), stats, parts
    )


def gather_slot_params(layout: Layout, params: SlotArrays) -> SlotArrays:
    """Put together what fsdp shares out."""
    if not layout.gathers_params:
        return params
    held, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, all_gather(held, layout.fsdp_dims, fsdp.FSDP_AXIS))


def loss_divisor(layout: Layout) -> int:
    """Return over how many devices the loss of the last stage is shared."""
    plan = layout.plan
    return plan.mesh.size(*(axis for axis in plan.sum_axes if axis != "pipe"))


def stage_transfer_traffic(
    layout: Layout, trace_cache: TraceCache, repeated_blocks: RepeatedBlocks
) -> Iterator[PlannedCollective]:
    """Yield what stages hand to their neighbours in a training step.

    Each exchange moves as much, whether something new is in it or not.

    Args:
        layout: its network is cut into stages.
        trace_cache: of the network, for other layouts.
        repeated_blocks: blocks of the network that need not be read.
    """
    same = (
        RepeatedBlocks(names=repeated_blocks.names)
        if layout.plan.spatial_until
        else repeated_blocks
    )
    behind = trace_cache.get_or_compute(
        ("handed", *_transfer_key(layout)), lambda: _trace_block_outputs(layout, same)
    )
    ends = [blocks[-1] for blocks in require_slot_layout(layout).stages.blocks[:-1]]
    times = plan_schedule(layout.plan, layout.task.microbatches).exchanges
    hops = len(require_slot_layout(layout).stages.placement.send_permutations())
    for what, forms in (
        ("activations", [behind[same.representative_path(end)] for end in ends]),
        (
            "gradients",
            [cotangent_spec(behind[same.representative_path(end)]) for end in ends],
        ),
    ):
        yield PlannedCollective(
            what=what,
            kind="collective-permute",
            axes=("pipe",),
            payload=times * hops * buffer_bytes(max_lengths(forms)),
            layer="between_stages",
            arrays=times * hops,
        )


def _transfer_key(layout: Layout) -> tuple[Hashable, ...]:
    """Return what the forms of handed arrays depend on, besides the network."""
    plan, micro = layout.plan, layout.task.microbatches
    split = tuple(
        size for axis, size in plan.mesh.items() if axis not in _SAMPLE_ONLY_AXES
    )
    batch = (
        next(iter(layout.batch_shapes.values())).shape[0] // plan.batch_shards // micro
    )
    return batch, split, plan.weights, plan.spatial_until, plan.spatial_then


def _trace_block_outputs(
    layout: Layout, repeated_blocks: RepeatedBlocks
) -> dict[str, FlatTreeSpec]:
    """Trace the network on one device and return what each block would hand on."""
    task, found = layout.task, dict[str, FlatTreeSpec]()
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    short: Any = repeated_blocks.shorten(network)
    graph, *trees = nnx.split(short, nnx.Param, ...)
    held = require_slot_layout(layout)
    local = [
        _local_shapes(held.param_slots, trees[0], layout.plan, task.dtype),
        _local_shapes(held.stat_slots, trees[1], layout.plan, None),
    ]

    def run(nothing: Any, batch: Batch) -> None:
        del nothing
        part = {
            name: split_microbatches(x, task.microbatches)[0]
            for name, x in batch.items()
        }
        arrays = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), local)
        model: Any = nnx.merge(graph, *arrays)
        model.train()
        layout.bind_layers(model, jax.random.key(0), part["id"])
        given = model_inputs(task, part)
        carried: Any = (given if len(given) > 1 else given[0]), ()
        for name, _ in short.chain():
            carried = run_blocks(model, (name,), carried)
            found[name] = flat_tree_spec(carried)

    batch: Any = layout.padded_shapes(layout.batch_shapes)
    jax.eval_shape(layout.shard_map(run, P(), batch, P()), (), batch)
    return found


def _local_shapes(slots: SlotLayout, tree: Any, plan: Plan, dtype: Any) -> Any:
    """Return the shapes that a stage uses leaves in, those of some blocks as a tree."""
    by_name = {leaf.name: leaf for leaf in slots.leaves}
    leaves = [
        jax.ShapeDtypeStruct(
            by_name[name].local_shape(plan, include_fsdp=False),
            dtype if dtype is not None and len(x.shape) > 1 else x.dtype,
        )
        for name, x in named_leaves(tree).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def make_training_pipeline(
    layout: Layout, state: TrainState, batch: Batch
) -> tuple[Pipeline, Batch]:
    """Return the pipeline of a training step, and the microbatches that go through.

    The loss of a step is the mean of its microbatches'; where each moves the weights,
    its own is what it takes gradients of.
    """
    task, flows = layout.task, layout.plan.pipe.flows
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)
    parts = loss_divisor(layout) * (1 if flows else task.microbatches)

    def share(out: Any, part: Batch) -> jax.Array:
        return layout.objective.losses(out, part).mean() / parts

    order = plan_schedule(layout.plan, task.microbatches)
    micro = {
        name: split_microbatches(x, task.microbatches) for name, x in batch.items()
    }
    return _make_pipeline(layout, order.supersteps, share, key), micro


def _make_pipeline(
    layout: Layout,
    supersteps: Supersteps,
    last_stage_fn: LastStageFn,
    key: jax.Array | None,
) -> Pipeline:
    """Return the stages as functions, and the table that moves them.

    Args:
        layout: its network is cut into stages.
        supersteps: who does what when.
        last_stage_fn: what the last stage makes of a network's outputs.
        key: random key of (seed, step) in training; None in evaluation.
    """
    held = require_slot_layout(layout)
    stages = held.stages
    return Pipeline(
        stages=tuple(
            _make_stage(layout, number, last_stage_fn, key)
            for number in range(stages.count)
        ),
        schedule_arrays=schedule_arrays(supersteps, stages.placement),
        param_slots=held.param_slots,
        stat_slots=held.stat_slots,
        compute_dtype=layout.task.dtype,
    )


def require_slot_layout(layout: Layout) -> SlotStateLayout:
    """Return how the state of a layout with stages lies."""
    if layout.slot_layout is None:
        raise TypeError(f"{layout.plan.title} has no stages")
    return layout.slot_layout


def _make_stage(
    layout: Layout, index: int, last_stage_fn: LastStageFn, key: jax.Array | None
) -> PipelineStage:
    task, held = layout.task, require_slot_layout(layout)
    stages = held.stages
    blocks, ends = stages.blocks[index], index == stages.count - 1
    trees = task.state.params, task.state.stats
    own = [
        tuple(place for place, users in enumerate(used) if index in users)
        for used in held.leaf_stages
    ]
    again = (
        partial_remat_blocks(layout.plan, sum(stages.blocks, ()))
        if key is not None
        else ()
    )

    def make(part: Batch, params: Any, stats: Any) -> Any:
        model = merge_model(task, params, stats)
        model.train() if key is not None else model.eval()
        layout.bind_layers(model, key, part["id"] if key is not None else None)
        tag_all_blocks(layout.plan, model)
        return model

    def call(params: Any, stats: Any, carried: Any, part: Batch) -> Any:
        if index == 0:
            given = model_inputs(task, part)
            carried = (given if len(given) > 1 else given[0]), ()
        held = fill_with_zeros(trees[0], params), fill_with_zeros(trees[1], stats)
        carried, after = run_with_partial_remat(
            partial(make, part), blocks, again, held, carried
        )
        new = jax.tree.leaves(after)
        kept = {place: new[place] for place in own[1]}
        if not ends:
            return carried, kept
        return last_stage_fn(
            *select_local_samples(layout.plan, network_outputs(carried), part)
        ), kept

    return PipelineStage(
        index=index,
        device=stages.placement.device_of(index),
        forward=call if key is None else maybe_checkpoint(layout.plan, call),
        param_indices=own[0],
        stat_indices=own[1],
    )


def fill_with_zeros(tree: Any, stage_leaves: Mapping[int, jax.Array]) -> Any:
    """Fill a tree of shapes with a stage's own leaves; what it does not use is zero."""
    shapes, structure = jax.tree.flatten(tree)
    leaves = [
        stage_leaves[place] if place in stage_leaves else jnp.zeros(x.shape, x.dtype)
        for place, x in enumerate(shapes)
    ]
    return jax.tree.unflatten(structure, leaves)
