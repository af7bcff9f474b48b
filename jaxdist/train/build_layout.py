"""Laying out: a task and a plan made a layout, or refused before anything compiles."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jaxdist.core.plan import Plan
from jaxdist.layers import bind
from jaxdist.partition import axis_usage, data_parallel, tensor_parallel
from jaxdist.partition.block_padding import fit
from jaxdist.partition.gradient_buckets import plan_reduction
from jaxdist.partition.ledger import ParameterReads, build_ledger
from jaxdist.partition.outer_sync import plan_syncs
from jaxdist.partition.param_sharding import leaf_shardings
from jaxdist.pipeline.plan_schedule import device_work_counts
from jaxdist.profile.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from jaxdist.profile.trace_cache import TraceCache
from jaxdist.profile.xla_cpu.backward_reads import backward_reads
from jaxdist.train import diloco
from jaxdist.train import remat as remake
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.norm_requests import norm_requests
from jaxdist.train.objective import Batch, cast_floats
from jaxdist.train.pipeline import async_steps, sync_gradients
from jaxdist.train.pipeline.stages import (
    build_slot_layout,
    constant_rng_binder,
    cut_into_stages,
    device_calls,
    variable_by_name,
    variable_ids_by_block,
)
from jaxdist.train.state import leaf_names, named_leaves
from jaxdist.train.state_layout import LeafStateLayout, StateLayout
from jaxdist.train.task import Task


def build_layout(
    task: Task,
    plan: Plan,
    mesh: Mesh,
    batch_shapes: BatchShapes,
    trace_cache: TraceCache | None = None,
) -> Layout:
    """Lay a task out, or refuse what its network or batch cannot take.

    Args:
        task: what is trained.
        plan: how it is to be split.
        mesh: the plan's axes on devices.
        batch_shapes: a global training batch: the objective's keys and `id [B]`.
        trace_cache: of the same network and batch, where it is laid out many times.

    Raises:
        BadInput: naming the layer or the batch, the numbers and what works.
    """
    trace_cache = trace_cache or TraceCache()
    inputs = cast_floats(task.objective.model_inputs(batch_shapes), task.dtype)
    image, _ = task.objective.inputs[0]
    axis_usage.check_axis_usage(plan, task.objective.dim_axes(image, inputs[0].ndim))
    data_parallel.check_batch_size(plan, inputs[0].shape[0], task.microbatches)
    state = task.state
    diloco.check_outer_loop(plan, state)
    count = task.microbatches * plan.replicas
    inputs = jax.tree.map(lambda x: _microbatch_shape(x, count), inputs)
    network = trace_cache.get_or_compute(
        "network", lambda: nnx.merge(task.graph, state.params, state.stats)
    )
    alike = trace_cache.get_or_compute(
        "alike",
        lambda: find_repeated_blocks(network, inputs, constant_rng_binder(inputs)),
    )
    parts = state.params, state.stats
    calls, fitted = fit(
        plan, task.graph, parts, *inputs, trace_cache=trace_cache, repeated_blocks=alike
    )
    data_parallel.check_norm_groups(plan, calls)
    if plan.remat:
        remake.check_remat(plan, network)
    roles = trace_cache.get_or_compute(
        ("roles", plan.weights, plan.mesh.tensor, plan.idle, plan.spatial_until),
        lambda: tensor_parallel.assign_roles(plan, calls, network),
    )
    own = [
        leaf_shardings(
            plan, roles, trace_cache.get_or_compute(kind, partial(named_leaves, tree))
        )
        for kind, tree in (("params", state.params), ("stats", state.stats))
    ]
    hold: StateLayout = LeafStateLayout(param_shardings=own[0], stat_shardings=own[1])
    stages = None
    if plan.stages > 1:
        stages = cut_into_stages(plan, network, inputs, trace_cache, alike)
        hold = build_slot_layout(
            plan, stages, network, state, (own[0], own[1]), trace_cache
        )
    reads = _parameter_reads(task, plan, hold, batch_shapes, trace_cache, alike)
    if stages is not None:
        async_steps.check_async_support(plan, hold, reads)
    reduction = plan_reduction(plan, reads.leaves)
    syncs = plan_syncs(plan, reads.leaves, hold.stat_shardings)
    write = partial(
        build_ledger, plan, calls, roles, reads, reduction=reduction, outer_syncs=syncs
    )
    layout = Layout(
        task=task,
        plan=plan,
        mesh=mesh,
        tensor_roles=roles,
        block_padding=fitted,
        state_layout=hold,
        ledgers=(),
        reduction=reduction,
        outer_syncs=syncs,
        batch_shapes=batch_shapes,
    )
    if stages is None:
        return replace(layout, ledgers=(write(microbatches=task.microbatches),))
    handed = tuple(sync_gradients.stage_transfer_traffic(layout, trace_cache, alike))
    return replace(
        layout,
        ledgers=tuple(
            write(
                microbatches=mine.microbatches,
                updates=mine.updates,
                select_calls=partial(device_calls, stages, network, device=device),
            ).with_rows((*handed, *async_steps.stage_reduction_traffic(layout, device)))
            for device, mine in enumerate(device_work_counts(plan, task.microbatches))
        ),
    )


def _parameter_reads(
    task: Task,
    plan: Plan,
    state_layout: StateLayout,
    shapes: BatchShapes,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
) -> ParameterReads:
    """Say how the parameters lie and which of them the backward pass reads."""
    abstract = state_layout.device_shapes(task.state)
    asked, totals = trace_cache.get_or_compute(
        ("squares", *_shape_key(abstract.params), *_shape_key(abstract.opt)),
        lambda: norm_requests(task, abstract, repeated_blocks),
    )
    if not isinstance(state_layout, LeafStateLayout):
        # Stages put their parameters together once, before the first microbatch.
        again = (False,) * len(state_layout.param_shardings)
        return ParameterReads(
            leaves=state_layout.param_shardings,
            backward_reads=again,
            dtype=None,
            norm_requests=asked,
            global_norms=totals,
        )
    return ParameterReads(
        leaves=state_layout.param_shardings,
        backward_reads=_backward_reads(
            task, plan, state_layout, shapes, trace_cache, repeated_blocks
        ),
        dtype=task.dtype,
        norm_requests=asked,
        global_norms=totals,
        gathers_per_step=task.microbatches,
    )


def _backward_reads(
    task: Task,
    plan: Plan,
    state_layout: LeafStateLayout,
    shapes: BatchShapes,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
) -> tuple[bool, ...]:
    """Tell which parameters are put together once more for the backward pass."""
    leaves = state_layout.param_shardings
    if plan.zero != 3 or all(leaf.fsdp_dim is None for leaf in leaves):
        return (False,) * len(leaves)

    def reading(remat: bool, until: str) -> tuple[bool, ...]:
        one = replace(plan, remat=remat, remat_until=until)
        return trace_cache.get_or_compute(
            ("again", remat, until),
            lambda: _trace_backward_reads(task, one, shapes, repeated_blocks),
        )

    if not plan.remat_until:
        return reading(plan.remat, "")
    # Of equal blocks few are read: the end is moved behind those that are not.
    near = repeated_blocks.next_traced(plan.remat_until)
    first = trace_cache.get_or_compute(
        ("remade", plan.remat_until),
        lambda: _is_in_remat_blocks(task, plan, trace_cache),
    )
    each = zip(first, reading(True, near), reading(False, ""), strict=True)
    return tuple(again if used else kept for used, again, kept in each)


def _is_in_remat_blocks(
    task: Task, plan: Plan, trace_cache: TraceCache
) -> tuple[bool, ...]:
    """Tell which parameters the blocks use that are computed again."""
    params, stats = task.state.params, task.state.stats
    network = trace_cache.get_or_compute(
        "network", lambda: nnx.merge(task.graph, params, stats)
    )
    used = trace_cache.get_or_compute(
        "variables", lambda: dict(variable_ids_by_block(network))
    )
    first = set[int]().union(*(used[name] for name in plan.remade((*used,))))
    return tuple(
        id(variable_by_name(network, name)) in first for name in leaf_names(params)
    )


def _trace_backward_reads(
    task: Task, plan: Plan, shapes: BatchShapes, repeated_blocks: RepeatedBlocks
) -> tuple[bool, ...]:
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    graph, short, *others = nnx.split(repeated_blocks.shorten(network), nnx.Param, ...)
    values, tree = jax.tree.flatten(short)
    values = [cast_floats(x, task.dtype) if x.ndim > 1 else x for x in values]

    def make(ids: Any, params: list[Any], stats: Any) -> Any:
        params = jax.tree.unflatten(tree, params)
        model = nnx.merge(graph, params, stats, copy=True)
        model.train()
        bind(model, jax.random.key(0), ids)
        remake.tag_all_blocks(plan, model)
        return model

    def loss(params: list[Any], stats: Any, batch: Batch) -> Any:
        given = cast_floats(task.objective.model_inputs(batch), task.dtype)
        own = partial(make, batch["id"])
        outputs, _ = remake.call_model(plan, own, params, stats, given)
        return task.objective.losses(outputs, batch).mean()

    reads = backward_reads(
        remake.maybe_checkpoint(plan, loss), values, others[0], dict(shapes)
    )
    again = [read and x.ndim > 1 for read, x in zip(reads, values, strict=True)]
    found = dict(zip(leaf_names(short), again, strict=True))
    return tuple(repeated_blocks.expand_leaves(found, leaf_names(task.state.params)))


def _shape_key(tree: Any) -> tuple[Any, ...]:
    """Return a tree of shapes as a key."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((x.shape, x.dtype) for x in leaves)


def _microbatch_shape(x: jax.ShapeDtypeStruct, parts: int) -> jax.ShapeDtypeStruct:
    """Give the shape of one of equal parts of a batch."""
    return jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype)
