"""Gradients and evaluation of a layout whose network is cut into pipeline stages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.sharded_leaves import all_gather
from jaxdist.core.axes import BATCH_AXES
from jaxdist.partition.param_sharding import FSDP_AXIS
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
from jaxdist.pipeline.schedule_base import Supersteps, WorkKind
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.pipeline.stages import (
    Pipeline,
    PipelineStage,
    cotangent_spec,
    network_outputs,
)
from jaxdist.pipeline.stages import run as run_blocks
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.profile.trace import TraceCache
from jaxdist.train.layout import Layout
from jaxdist.train.materialize_params import (
    frozen_arrays,
    merge_model,
    model_inputs,
    select_local_samples,
    split_microbatches,
    with_frozen,
)
from jaxdist.train.objective import Batch, cast_floats
from jaxdist.train.remat import (
    maybe_checkpoint,
    partial_remat_blocks,
    run_with_partial_remat,
    tag_activations,
)
from jaxdist.train.state import TrainState, named_leaves
from jaxdist.train.state_layout import SlotStateLayout

# Axes whose sizes change nothing in a stage but the samples of a microbatch.
_SAMPLE_ONLY_AXES: Final = ("replica", "pipe", *BATCH_AXES)

LastStageFn = Callable[[Any, Batch], Any]
"""Maps a network's outputs and the batch to what the last stage returns."""


def pipeline_gradients(
    layout: Layout, state: TrainState, stats: SlotArrays, batch: Batch
) -> tuple[jax.Array, Any, list[jax.Array]]:
    """Return this device's share of the loss, new statistics, and its gradients.

    Args:
        layout: layout with stages.
        state: this device's state.
        stats: its running statistics.
        batch: this device's samples.
    """
    pipe, parts = make_training_pipeline(layout, state, batch)
    params, whole = gather_slots(layout, state.params, stats)
    loss, new, grads = sync_executor.run(pipe, params, whole, parts)
    new = with_frozen(layout, new, frozen_arrays(layout, stats))
    return loss, new, jax.tree.leaves(grads)


def pipeline_eval(
    layout: Layout,
    params: SlotArrays,
    stats: SlotArrays,
    batch: Batch,
    last_stage_fn: LastStageFn,
) -> Any:
    """Return sums over a batch of what the last stage computes; 0 on other devices.

    Args:
        layout: layout with stages.
        params: this device's parameters.
        stats: its running statistics.
        batch: this device's samples.
        last_stage_fn: maps outputs to a tree of sums over samples.
    """
    # As many microbatches as stages fill the pipeline, where the samples divide.
    samples, devices = batch["id"].shape[0], layout.plan.mesh.pipe
    micro = devices if samples % devices == 0 else 1
    pipe = _make_pipeline(
        layout, evaluation_supersteps(layout.plan, micro), last_stage_fn, None
    )
    parts = {name: split_microbatches(x, micro) for name, x in batch.items()}
    params, stats = gather_slots(layout, params, stats)
    return sync_executor.run_forward(pipe, params, stats, parts)


def gather_slots(
    layout: Layout, params: SlotArrays, stats: SlotArrays
) -> tuple[SlotArrays, SlotArrays]:
    """All-gather the parameters that fsdp shards, those among the statistics too."""
    if not layout.gathers_params:
        return params, stats
    held, tree = jax.tree.flatten(params)
    shards, count = [*held, *frozen_arrays(layout, stats)], len(held)
    whole = all_gather(shards, layout.gather_dims, FSDP_AXIS)
    stats = with_frozen(layout, stats, whole[count:])
    return jax.tree.unflatten(tree, whole[:count]), stats


def stage_transfer_traffic(
    layout: Layout, trace_cache: TraceCache, repeated_blocks: RepeatedBlocks
) -> Iterator[PlannedCollective]:
    """Yield what stages send to their neighbours in a training step.

    Args:
        layout: layout with stages.
        trace_cache: traces of the network, for other layouts.
        repeated_blocks: equal blocks, of which one is traced.
    """
    # Where images are split until some block, equal blocks are not alike any more.
    plan, micro = layout.plan, layout.task.microbatches
    same = repeated_blocks
    if plan.spatial_end:
        same = RepeatedBlocks(names=repeated_blocks.names)
    # All that the outputs of blocks depend on, besides the network.
    batch = next(iter(layout.batch_shapes.values())).shape[0]
    sizes = [n for axis, n in plan.mesh.items() if axis not in _SAMPLE_ONLY_AXES]
    key = (
        *("handed", batch // plan.batch_shards // micro, tuple(sizes)),
        *(plan.tensor_strategy, plan.spatial_end, plan.spatial_end_mode),
    )
    outputs = trace_cache.get_or_compute(
        key, lambda: _trace_block_outputs(layout, same)
    )
    stages = require_slot_layout(layout).stages
    # Equal blocks hand equal messages on, and the longest of them counts.
    ends = {same.representative_path(blocks[-1]) for blocks in stages.blocks[:-1]}
    # Every exchange moves a buffer of the longest lengths, whether it is new or not:
    # the permutes are in a program that all devices run.
    hops = len(stages.placement.send_permutations())
    times = plan_schedule(plan, micro).exchanges * hops
    for what, specs in (
        ("activations", [outputs[end] for end in ends]),
        ("gradients", [cotangent_spec(outputs[end]) for end in ends]),
    ):
        yield PlannedCollective(
            what=what,
            kind="collective-permute",
            axes=("pipe",),
            payload=times * buffer_bytes(max_lengths(specs)),
            layer="between_stages",
            arrays=times,
        )


def _trace_block_outputs(
    layout: Layout, repeated_blocks: RepeatedBlocks
) -> dict[str, FlatTreeSpec]:
    """Trace the network as one stage, and return the output of each block."""
    task, found = layout.task, dict[str, FlatTreeSpec]()
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    short: Any = repeated_blocks.shorten(network)
    graph, *trees = task.split(short)
    held = require_slot_layout(layout)

    # The shapes and dtypes in which a stage uses leaves: gathered over fsdp, matrices
    # of parameters in the dtype of activations.
    local = []
    for slots, tree, dtype in (
        (held.param_slots, trees[0], task.dtype),
        (held.stat_slots, trees[1], None),
    ):
        by_name = {leaf.name: leaf for leaf in slots.leaves}
        leaves = [
            jax.ShapeDtypeStruct(
                by_name[name].local_shape(layout.plan, include_fsdp=False),
                cast_floats(x, dtype).dtype if len(x.shape) > 1 else x.dtype,
            )
            for name, x in named_leaves(tree).items()
        ]
        local.append(jax.tree.unflatten(jax.tree.structure(tree), leaves))

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
        # As if each block were a stage: what it hands on does not depend on cuts.
        for name, _ in short.chain():
            carried = run_blocks(model, (name,), carried)
            found[name] = flat_tree_spec(carried)

    batch: Any = layout.padded_shapes(layout.batch_shapes)
    jax.eval_shape(layout.shard_map(run, P(), batch, P()), (), batch)
    return found


def make_training_pipeline(
    layout: Layout, state: TrainState, batch: Batch
) -> tuple[Pipeline, Batch]:
    """Return the pipeline of a training step, and its microbatches."""
    task, plan = layout.task, layout.plan
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)
    # The loss of a step is the mean of its microbatches'; with an asynchronous schedule
    # gradients are of a microbatch's own. Only devices of the last stage have a loss.
    devices = plan.mesh.size(*(axis for axis in plan.sum_axes if axis != "pipe"))
    parts = devices * (1 if plan.pipe.flows else task.microbatches)

    def share(out: Any, part: Batch) -> jax.Array:
        return layout.objective.mean_loss(out, part) / parts

    # All devices of the pipe axis have the same samples, and each stage its part of the
    # work.
    order = plan_schedule(plan, task.microbatches)
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
    """Return the stages as functions, and the schedule as arrays.

    Args:
        layout: layout with stages.
        supersteps: work of each stage by superstep.
        last_stage_fn: maps the network's outputs to what the last stage returns.
        key: random key of (seed, step) in training; None in evaluation.
    """
    held = require_slot_layout(layout)
    stages = held.stages
    arrays = schedule_arrays(supersteps, stages.placement)
    return Pipeline(
        stages=tuple(
            _make_stage(layout, number, last_stage_fn, key)
            for number in range(stages.count)
        ),
        schedule_arrays=arrays,
        is_exchange_last=key is not None and sends_after_works(layout, arrays.kinds),
        param_slots=held.param_slots,
        stat_slots=held.stat_slots,
        compute_dtype=layout.task.dtype,
    )


def sends_after_works(layout: Layout, kinds: Sequence[WorkKind]) -> bool:
    """Tell whether a training step sends nothing before all works of a tick are done.

    Args:
        layout: layout with stages.
        kinds: kinds of work of its schedule.
    """
    # In asynchronous pipelines replicas sum gradients within a tick, which is no work
    # of the schedule: nothing would order these sums and what is sent, and devices that
    # take them in other orders wait for each other for ever.
    if layout.plan.pipe.flows:
        return False
    # On accelerators activations may travel beside the backward pass of the tick.
    return layout.platform == "cpu" or "weights" in kinds


def require_slot_layout(layout: Layout) -> SlotStateLayout:
    """Return the slots of a layout with stages."""
    if layout.slot_layout is None:
        raise TypeError(f"{layout.plan.title} has no stages")
    return layout.slot_layout


def _make_stage(
    layout: Layout, index: int, last_stage_fn: LastStageFn, key: jax.Array | None
) -> PipelineStage:
    task, held = layout.task, require_slot_layout(layout)
    stages, training = held.stages, key is not None
    params_of_stage, stats_of_stage = (
        tuple(place for place, users in enumerate(used) if index in users)
        for used in held.leaf_stages
    )
    again: tuple[str, ...] = ()
    if training:
        again = partial_remat_blocks(layout.plan, sum(stages.blocks, ()))

    def make(part: Batch, params: Any, stats: Any) -> Any:
        model = merge_model(task, params, stats)
        model.train() if training else model.eval()
        # Metrics of one's own are functions of whole outputs.
        is_scored = training or not task.metrics
        layout.bind_layers(
            model, key, part["id"] if training else None, is_scored=is_scored
        )
        tag_activations(layout.plan, model)
        return model

    def call(params: Any, stats: Any, carried: Any, part: Batch) -> Any:
        if index == 0:
            given = model_inputs(task, part)
            carried = (given if len(given) > 1 else given[0]), ()
        # The whole network is merged, with zeros in the leaves of other stages, which
        # XLA removes as nothing reads them.
        whole = (
            fill_with_zeros(task.state.params, params),
            fill_with_zeros(task.state.stats, stats),
        )
        carried, after = run_with_partial_remat(
            partial(make, part), stages.blocks[index], again, whole, carried
        )
        new = jax.tree.leaves(after)
        kept = {place: new[place] for place in stats_of_stage}
        if index < stages.count - 1:
            return carried, kept
        outputs, targets = select_local_samples(
            layout.plan, network_outputs(carried), part
        )
        return last_stage_fn(outputs, targets), kept

    return PipelineStage(
        index=index,
        device=stages.placement.device_of(index),
        forward=maybe_checkpoint(layout.plan, call) if training else call,
        param_indices=params_of_stage,
        stat_indices=stats_of_stage,
    )


def fill_with_zeros(tree: Any, stage_leaves: Mapping[int, jax.Array]) -> Any:
    """Return a tree of a stage's own leaves, with zeros in the others."""
    shapes, structure = jax.tree.flatten(tree)
    leaves = [
        stage_leaves[place] if place in stage_leaves else jnp.zeros(x.shape, x.dtype)
        for place, x in enumerate(shapes)
    ]
    return jax.tree.unflatten(structure, leaves)
