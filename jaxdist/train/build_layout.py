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
    shapes: BatchShapes,
    readings: TraceCache | None = None,
) -> Layout:
    """Lay a task out, or refuse what its network or batch cannot take.

    Args:
        task: what is trained.
        plan: how it is to be split.
        mesh: the plan's axes on devices.
        shapes: a global training batch: the objective's keys and `id [B]`.
        readings: of the same network and batch, where it is laid out many times.

    Raises:
        BadInput: naming the layer or the batch, the numbers and what works.
    """
    readings = readings or TraceCache()
    inputs = cast_floats(task.objective.arguments(shapes), task.dtype)
    image, _ = task.objective.inputs[0]
    axis_usage.check_axis_usage(plan, task.objective.axes(image, inputs[0].ndim))
    data_parallel.check_batch_size(plan, inputs[0].shape[0], task.microbatches)
    state = task.state
    diloco.check_outer_loop(plan, state)
    count = task.microbatches * plan.replicas
    inputs = jax.tree.map(lambda x: _microbatch_shape(x, count), inputs)
    network = readings.once(
        "network", lambda: nnx.merge(task.graph, state.params, state.stats)
    )
    alike = readings.once(
        "alike",
        lambda: find_repeated_blocks(network, inputs, constant_rng_binder(inputs)),
    )
    parts = state.params, state.stats
    calls, fitted = fit(
        plan, task.graph, parts, *inputs, readings=readings, alike=alike
    )
    data_parallel.check_norm_groups(plan, calls)
    if plan.remat:
        remake.check_remat(plan, network)
    roles = readings.once(
        ("roles", plan.weights, plan.mesh.tensor, plan.idle, plan.spatial_until),
        lambda: tensor_parallel.assign_roles(plan, calls, network),
    )
    own = [
        leaf_shardings(plan, roles, readings.once(kind, partial(named_leaves, tree)))
        for kind, tree in (("params", state.params), ("stats", state.stats))
    ]
    hold: StateLayout = LeafStateLayout(params=own[0], stats=own[1])
    stages = None
    if plan.stages > 1:
        stages = cut_into_stages(plan, network, inputs, readings, alike)
        hold = build_slot_layout(
            plan, stages, network, state, (own[0], own[1]), readings
        )
    reads = _parameter_reads(task, plan, hold, shapes, readings, alike)
    if stages is not None:
        async_steps.check_async_support(plan, hold, reads)
    reduction = plan_reduction(plan, reads.leaves)
    syncs = plan_syncs(plan, reads.leaves, hold.stats)
    write = partial(
        build_ledger, plan, calls, roles, reads, reduction=reduction, syncs=syncs
    )
    layout = Layout(
        task=task,
        plan=plan,
        mesh=mesh,
        roles=roles,
        sizes=fitted,
        hold=hold,
        ledgers=(),
        reduction=reduction,
        syncs=syncs,
        shapes=shapes,
    )
    if stages is None:
        return replace(layout, ledgers=(write(times=task.microbatches),))
    handed = tuple(sync_gradients.stage_transfer_traffic(layout, readings, alike))
    return replace(
        layout,
        ledgers=tuple(
            write(
                times=mine.micro,
                updates=mine.updates,
                own=partial(device_calls, stages, network, device=device),
            ).beside((*handed, *async_steps.stage_reduction_traffic(layout, device)))
            for device, mine in enumerate(device_work_counts(plan, task.microbatches))
        ),
    )


def _parameter_reads(
    task: Task,
    plan: Plan,
    hold: StateLayout,
    shapes: BatchShapes,
    readings: TraceCache,
    alike: RepeatedBlocks,
) -> ParameterReads:
    """Say how the parameters lie and which of them the backward pass reads."""
    abstract = hold.shapes(task.state)
    asked, totals = readings.once(
        ("squares", *_shape_key(abstract.params), *_shape_key(abstract.opt)),
        lambda: norm_requests(task, abstract, alike),
    )
    if not isinstance(hold, LeafStateLayout):
        # Stages put their parameters together once, before the first microbatch.
        again = (False,) * len(hold.params)
        return ParameterReads(
            leaves=hold.params, again=again, dtype=None, lengths=asked, totals=totals
        )
    return ParameterReads(
        leaves=hold.params,
        again=_backward_reads(task, plan, hold, shapes, readings, alike),
        dtype=task.dtype,
        lengths=asked,
        totals=totals,
        times=task.microbatches,
    )


def _backward_reads(
    task: Task,
    plan: Plan,
    hold: LeafStateLayout,
    shapes: BatchShapes,
    readings: TraceCache,
    alike: RepeatedBlocks,
) -> tuple[bool, ...]:
    """Tell which parameters are put together once more for the backward pass."""
    leaves = hold.params
    if plan.zero != 3 or all(leaf.fsdp is None for leaf in leaves):
        return (False,) * len(leaves)

    def reading(remat: bool, until: str) -> tuple[bool, ...]:
        one = replace(plan, remat=remat, remat_until=until)
        return readings.once(
            ("again", remat, until),
            lambda: _trace_backward_reads(task, one, shapes, alike),
        )

    if not plan.remat_until:
        return reading(plan.remat, "")
    # Of equal blocks few are read: the end is moved behind those that are not.
    near = alike.read_behind(plan.remat_until)
    first = readings.once(
        ("remade", plan.remat_until), lambda: _is_in_remat_blocks(task, plan, readings)
    )
    each = zip(first, reading(True, near), reading(False, ""), strict=True)
    return tuple(again if used else kept for used, again, kept in each)


def _is_in_remat_blocks(
    task: Task, plan: Plan, readings: TraceCache
) -> tuple[bool, ...]:
    """Tell which parameters the blocks use that are computed again."""
    params, stats = task.state.params, task.state.stats
    network = readings.once("network", lambda: nnx.merge(task.graph, params, stats))
    used = readings.once("variables", lambda: dict(variable_ids_by_block(network)))
    first = set[int]().union(*(used[name] for name in plan.remade((*used,))))
    return tuple(
        id(variable_by_name(network, name)) in first for name in leaf_names(params)
    )


def _trace_backward_reads(
    task: Task, plan: Plan, shapes: BatchShapes, alike: RepeatedBlocks
) -> tuple[bool, ...]:
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    graph, short, *others = nnx.split(alike.short(network), nnx.Param, ...)
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
        given = cast_floats(task.objective.arguments(batch), task.dtype)
        own = partial(make, batch["id"])
        outputs, _ = remake.call_model(plan, own, params, stats, given)
        return task.objective.losses(outputs, batch).mean()

    reads = backward_reads(
        remake.maybe_checkpoint(plan, loss), values, others[0], dict(shapes)
    )
    again = [read and x.ndim > 1 for read, x in zip(reads, values, strict=True)]
    found = dict(zip(leaf_names(short), again, strict=True))
    return tuple(alike.whole(found, leaf_names(task.state.params)))


def _shape_key(tree: Any) -> tuple[Any, ...]:
    """Return a tree of shapes as a key."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((x.shape, x.dtype) for x in leaves)


def _microbatch_shape(x: jax.ShapeDtypeStruct, parts: int) -> jax.ShapeDtypeStruct:
    """Give the shape of one of equal parts of a batch."""
    return jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype)
