"""Building a layout from a task and a plan, checked before anything is compiled.

Whether a network takes the samples, and its objective what the network returns.

On shapes alone, before anything is written: what jax would broadcast is refused too.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxdist.core.axes import BATCH_AXES, EXPERT_AXIS, POSITION_AXES
from jaxdist.core.block_protocol import AttentionInputs, LogitsLayer
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import BatchNorm, Experts, bind
from jaxdist.layers.context import defer_logits
from jaxdist.layers.logits_product import MAX_CHUNK_TOKENS
from jaxdist.layers.tensor_role import Roles, role_key
from jaxdist.partition import data_parallel, tensor_parallel
from jaxdist.partition.block_padding import fit_block_padding
from jaxdist.partition.compiler_rewrites import mesh_platform, mesh_rules
from jaxdist.partition.context_parallel import attention_inputs, check_context
from jaxdist.partition.expert_parallel import check_experts, expert_layers
from jaxdist.partition.gradient_buckets import plan_reduction
from jaxdist.partition.ledger import (
    Ledger,
    MeanRequest,
    ParameterReads,
    build_ledger,
    matrix_flops,
    parameter_traffic,
)
from jaxdist.partition.outer_sync import plan_syncs
from jaxdist.partition.param_sharding import (
    LeafSharding,
    StateUpdate,
    leaf_shardings,
)
from jaxdist.partition.variable_sync import sync_axes, variable_traffic
from jaxdist.pipeline.plan_schedule import DeviceWorkCounts, device_work_counts
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.pipeline.stages import Stages
from jaxdist.profile.layer_calls import (
    CallKey,
    LayerCall,
    record_gradients,
    trace_calls,
    with_gradients,
)
from jaxdist.profile.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from jaxdist.profile.trace import TraceCache, has_gradients, modules_by_path
from jaxdist.profile.xla_cpu.backward_reads import backward_reads
from jaxdist.train import diloco, remat
from jaxdist.train.adafactor import check_factored, local_means
from jaxdist.train.block_scan import BlockScan, find_block_scans, scans_blocks
from jaxdist.train.expert_metrics import routing_traffic
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.objective import Batch, cast_floats
from jaxdist.train.pipeline import async_steps, sync_gradients
from jaxdist.train.pipeline.stages import (
    build_slot_layout,
    constant_rng_binder,
    cut_into_stages,
    device_calls,
    equal_call_blocks,
    variable_by_name,
    variable_ids_by_block,
)
from jaxdist.train.schedule_free import check_schedule_free
from jaxdist.train.sharded_norms import (
    global_norm,
    is_masked,
    leaves_with_masked,
    local_sum_squares,
    memoize_sums,
)
from jaxdist.train.state import (
    TrainState,
    leaf_names,
    named_leaves,
    replace_leaves,
)
from jaxdist.train.state_layout import LeafStateLayout, StateLayout
from jaxdist.train.task import Task

ValueT = TypeVar("ValueT")
Inputs = Sequence[jax.ShapeDtypeStruct]
Trace = Callable[[Inputs], Any]
"""Traces a network on inputs of these shapes; raises where it cannot take them."""


def check_samples(
    task: Task,
    network: nnx.Module,
    inputs: Inputs,
    batch_shapes: BatchShapes,
    prepare: Callable[[nnx.Module], None],
) -> tuple[RepeatedBlocks, Any]:
    """Hold samples, network and objective against each other.

    Args:
        task: what is trained.
        network: its network, on shapes alone; not changed.
        inputs: what it is called on, samples first.
        batch_shapes: a batch of as many samples, or more.
        prepare: called on the traced network before it runs.

    Returns:
        The blocks of the network that need not be traced again, and the shapes of what
        it returns.

    Raises:
        BadInput: the network cannot take the samples, or the objective cannot score
            what it returns.
    """

    def trace(inputs: Inputs) -> tuple[RepeatedBlocks, Any]:
        alike = find_repeated_blocks(network, inputs, prepare)
        if task.is_partial:  # equal blocks may be frozen one by one
            alike = RepeatedBlocks(names=alike.names)
        state = task.state.params, task.state.stats
        calls, outputs = trace_calls(task.graph, state, *inputs, repeated_blocks=alike)
        # A window larger than its image leaves nothing, of which a mean is no number.
        if empty := next((call for call in calls if 0 in call.out_shape), None):
            raise ValueError(f"{empty.path} returns nothing, {list(empty.out_shape)}")
        return alike, outputs

    try:
        alike, outputs = trace(inputs)
    except BadInput:
        raise
    except Exception as error:  # a network of one's own may raise anything
        raise network_input_error(network, inputs, trace, error) from error
    samples = inputs[0].shape[0]
    shapes = {
        key: jax.ShapeDtypeStruct((samples, *x.shape[1:]), x.dtype)
        for key, x in batch_shapes.items()
    }
    task.objective.check_outputs(outputs, shapes)
    return alike, outputs


def network_input_error(
    network: nnx.Module, inputs: Inputs, trace: Trace, error: Exception
) -> BadInput:
    """Say that a network cannot take its inputs, and the least size that it can.

    Args:
        network: on shapes alone.
        inputs: what it was called on, samples first; the first of them may be images.
        trace: the same on other inputs.
        error: what it raised.
    """
    name, shape = type(network).__name__, inputs[0].shape
    # The deepest line that is neither of jax nor of flax: a layer, or a user's network.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"jax", "flax", "optax"} & set(frame.filename.split("/"))
    ]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = (str(error).splitlines() or [""])[0]
    shown = ", ".join(f"{list(x.shape[1:])} {x.dtype}" for x in inputs)
    remedy = ["another model.name, or another data.name"]
    if least := least_image_size(inputs, trace):
        remedy.insert(0, f"images of at least {least} x {least}: data.size={least}")
    # Grey or coloured images with channels first, as other libraries have them.
    elif len(shape) == 4 and shape[1] in (1, 3) and shape[-1] not in (1, 3):
        remedy.insert(0, "data.channel_dim=first, or numpy.moveaxis(image, 1, -1)")
    elif len(shape) == 3:
        remedy.insert(0, "images are [N, H, W, C]: image[..., None]")
    return BadInput(
        f"{name} cannot take these samples",
        rule="a network takes inputs of the samples' shape, and every layer of it "
        "returns something",
        values=f"a sample is {shown}; {type(error).__name__}: {said}{place}",
        remedy=remedy,
    )


def least_image_size(inputs: Inputs, trace: Trace, limit: int = 1024) -> int | None:
    """Find the least rows and columns of the images that a network can take.

    Args:
        inputs: what it cannot be called on, the images first.
        trace: the network on other inputs.
        limit: rows of the largest images that are tried.

    Returns:
        None where its inputs are no images, or their size is not what is wrong.
    """
    image, *others = inputs
    if image.ndim < 4:
        return None

    def takes(side: int) -> bool:
        sides = (side,) * (image.ndim - 2)
        sized = (image.shape[0], *sides, image.shape[-1])
        try:
            trace([jax.ShapeDtypeStruct(sized, image.dtype), *others])
        except Exception:  # whatever a layer raises
            return False
        return True

    # Doubled, and then halved: a network that takes a size takes all above it.
    # `low` is always too small; `high` is enough from the end of the first loop on.
    low = min(image.shape[1:-1])
    high = max(2 * low, 1)
    while not takes(high):
        low, high = high, 2 * high
        if high > limit:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if takes(middle) else (middle, high)
    return high


def check_axis_usage(plan: Plan, input_axes: Sequence[str | None]) -> None:
    """Refuse an axis larger than one that splits nothing.

    Args:
        plan: the layout.
        input_axes: axis of each dim of the network's input, None where it stays whole.

    Raises:
        BadInput: naming the axis and what it would have done.
    """
    # Whether a network has experts is checked with them, and whether its weights divide
    # with the weights.
    used = [*BATCH_AXES, "tensor", *filter(None, input_axes)]
    used += ["replica"] * (plan.replicas > 1) + ["pipe"] * (plan.stages > 1)
    # Idle devices would be given parts of the batch or of samples all the same.
    never_idle = (*BATCH_AXES, *POSITION_AXES)
    for axis, size in plan.mesh.items():
        if size > 1 and axis not in used and axis not in plan.replicated_axes:
            raise BadInput(
                f"nothing is split along {axis}",
                rule="a mesh axis larger than one splits samples, images or weights",
                values=f"plan.mesh.{axis} = {size}; "
                f"this network can use "
                f"{', '.join(name for name in used if name != EXPERT_AXIS)}",
                remedy=(
                    f"plan.mesh.data={plan.mesh.data * size} plan.mesh.{axis}=1",
                    *["plan.outer.sync_interval=50"] * (axis == "replica"),
                    *[
                        f"plan.replicated_axes={axis} repeats the same work along it "
                        "on purpose"
                    ]
                    * (axis not in never_idle),
                ),
            )
        if axis in plan.replicated_axes and axis in never_idle:
            raise BadInput(
                f"{axis} cannot be idle",
                rule=f"only axes that split nothing are idle; {axis} splits its input",
                values=f"plan.replicated_axes = {','.join(plan.replicated_axes)}",
                remedy=f"plan.mesh.{axis}=1, or plan.replicated_axes without {axis}",
            )


def build_layout(
    task: Task,
    plan: Plan,
    mesh: Mesh,
    batch_shapes: BatchShapes,
    trace_cache: TraceCache | None = None,
) -> Layout:
    """Lay a task out by a plan.

    Args:
        task: what is trained.
        plan: how it is split.
        mesh: the plan's axes on devices.
        batch_shapes: a global training batch: the objective's keys and `id [B]`.
        trace_cache: traces of the same network and batch, to lay it out many times.

    Raises:
        BadInput: the network or the batch does not fit the plan, or samples, outputs
            and objective each other; names the layer, the numbers and a remedy.
    """
    task.check_frozen()
    trace_cache = trace_cache or TraceCache()
    inputs = cast_floats(task.objective.model_inputs(batch_shapes), task.dtype)
    image, _ = task.objective.inputs[0]
    check_axis_usage(plan, task.objective.dim_axes(image, inputs[0].ndim))
    data_parallel.check_batch_size(plan, inputs[0].shape[0], task.microbatches)
    state = task.state
    # All that its checks read of a plan; its state has thousands of arrays.
    trace_cache.get_or_compute(
        (
            *("optimizer", plan.stages > 1, plan.pipe.flows, plan.replicas > 1),
            plan.zero == 1 and plan.mesh.fsdp > 1,
        ),
        lambda: _check_optimizer(plan, state),
    )
    # What one call of the network sees: a microbatch of one replica, of all its
    # devices. How devices share it is worked out layer by layer.
    count = task.microbatches * plan.replicas
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((x.shape[0] // count, *x.shape[1:]), x.dtype),
        inputs,
    )

    # The network on the shapes of one microbatch, and what each layer does with the
    # axes.
    network = trace_cache.get_or_compute(
        "network", lambda: nnx.merge(task.graph, state.params, state.stats)
    )
    # Once for all layouts: what a sample is depends on none.
    repeated, outputs = _read_samples(task, network, inputs, batch_shapes, trace_cache)
    calls, padding = fit_block_padding(
        plan,
        task.graph,
        (state.params, state.stats),
        *inputs,
        trace_cache=trace_cache,
        repeated_blocks=repeated,
    )
    data_parallel.check_norm_groups(plan, calls)
    if plan.remat:
        remat.check_remat(plan, network)
    split = (
        *(plan.tensor_strategy, plan.mesh.tensor),
        *(plan.replicated_axes, plan.spatial_end),
    )
    roles = trace_cache.get_or_compute(
        ("roles", *split), lambda: tensor_parallel.assign_roles(plan, calls, network)
    )
    # To walk through all modules of a network takes longer than to check a layout.
    mixtures = trace_cache.get_or_compute("experts", lambda: expert_layers(network))
    check_experts(plan, mixtures)
    attention = trace_cache.get_or_compute(
        "attention", lambda: attention_inputs(network)
    )
    if plan.mesh.context > 1:
        check_context(plan, calls, roles, attention, inputs[0].shape[1])
        _check_whole_samples(task, plan)

    # Where each leaf of the state lies, which few settings of a plan decide.
    leaves = trace_cache.get_or_compute(
        (
            *("leaves", *split, plan.mesh.fsdp, plan.mesh.expert, plan.zero),
            plan.mesh.devices > 1,
        ),
        lambda: _shard_leaves(
            task, plan, (roles, mixtures), batch_shapes, trace_cache, repeated
        ),
    )
    held: StateLayout = leaves
    stages = None
    if plan.stages > 1:
        stages = cut_into_stages(plan, network, inputs, trace_cache, repeated)
        held = build_slot_layout(plan, stages, network, state, leaves, trace_cache)
    params = leaves.param_shardings
    trained = {leaf.name for leaf in params if leaf.has_gradient}
    if task.is_partial or len(trained) < len(params):
        found = _read_gradients(task, plan, batch_shapes, stages, trace_cache)
        calls = with_gradients(calls, found, trained)

    product = _logits_product(task, plan, mesh_platform(mesh), network, batch_shapes)

    # What a step reads of the parameters, and how it sums their gradients. Stages
    # gather their parameters once, before the first microbatch; else each microbatch
    # does, and its backward pass gathers again what it reads.
    shapes = trace_cache.get_or_compute(
        ("shapes", held), lambda: held.device_shapes(state)
    )

    # Without a flush stages move at different times, each along its own gradient.
    has_norm = task.gradient_norm and not plan.pipe.flows

    def optimizer_requests() -> OptimizerRequests:
        leaves, structure = jax.tree.flatten((shapes.params, shapes.opt))
        return trace_cache.get_or_compute(
            ("squares", has_norm, structure, *((x.shape, x.dtype) for x in leaves)),
            lambda: _optimizer_requests(task, shapes, repeated, has_norm),
        )

    requests = trace_cache.get_or_compute(("norms", has_norm, held), optimizer_requests)
    reads = ParameterReads(
        leaves=held.param_shardings,
        backward_reads=(),
        dtype=None,
        norm_requests=requests.norms,
        global_norms=requests.global_norms,
        matrix_requests=requests.matrices,
        mean_requests=requests.means,
        frozen=tuple(x for x in held.stat_shardings if x.fsdp_dim is not None),
    )
    if stages is None:
        reads = replace(
            reads,
            backward_reads=_backward_reads(
                task, plan, reads, batch_shapes, trace_cache, repeated, product
            ),
            dtype=task.dtype,
            gathers_per_step=task.microbatches,
        )
    else:
        reads = replace(reads, backward_reads=(False,) * len(reads.gathered))
        async_steps.check_async_support(plan, held, reads)
    reduction = plan_reduction(plan, reads.leaves, mesh_rules(mesh))
    layout = _scan_equal_blocks(
        Layout(
            task=task,
            plan=plan,
            mesh=mesh,
            tensor_roles=roles,
            block_padding=padding,
            state_layout=held,
            replica_state_shapes=shapes,
            ledgers=(),
            reduction=reduction,
            outer_syncs=plan_syncs(plan, reads.leaves, held.stat_shardings),
            batch_shapes=batch_shapes,
            platform=mesh_platform(mesh),
            logits_product=product,
            has_gradient_norm=has_norm,
        ),
        network,
        inputs,
        reads,
        trace_cache,
    )

    return _with_ledgers(
        layout, calls, outputs, reads, network, stages, trace_cache, repeated, attention
    )


def _check_optimizer(plan: Plan, state: TrainState) -> None:
    """Refuse plans that do not go with the task's optimizer."""
    diloco.check_outer_loop(plan, state)
    check_schedule_free(plan, state.opt)
    check_factored(plan, state.opt)


def _shard_leaves(
    task: Task,
    plan: Plan,
    layers: tuple[Roles, Mapping[str, Experts]],
    batch_shapes: BatchShapes,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
) -> LeafStateLayout:
    """Return how each leaf of the state is split, the pipe axis aside.

    Args:
        task: what is trained.
        plan: the layout.
        layers: roles of the network's layers along the tensor axis, and its mixtures
            of experts.
        batch_shapes: a global training batch.
        trace_cache: traces of the same network.
        repeated_blocks: equal blocks, of which one is traced.
    """
    roles, mixtures = layers
    params, stats = (
        leaf_shardings(
            plan,
            roles,
            trace_cache.get_or_compute(kind, partial(named_leaves, tree)),
            mixtures,
        )
        for kind, tree in (("params", task.state.params), ("stats", task.state.stats))
    )
    # On one device nothing is moved: the trace that tells what would be is saved.
    if plan.mesh.devices > 1:
        gradients, updates = trace_cache.get_or_compute(
            "updates", lambda: _read_updates(task, plan, batch_shapes, repeated_blocks)
        )
        # Nothing is moved of a parameter without a gradient: it is whole everywhere.
        params = tuple(
            leaf if moves else replace(leaf, has_gradient=False, fsdp_dim=None)
            for leaf, moves in zip(params, gradients, strict=True)
        )
        stats = tuple(
            replace(leaf, update=update)
            for leaf, update in zip(stats, updates, strict=True)
        )
    stats = _split_frozen(task, plan, stats)
    return LeafStateLayout(param_shardings=params, stat_shardings=stats)


def _split_frozen(
    task: Task, plan: Plan, stats: Sequence[LeafSharding]
) -> tuple[LeafSharding, ...]:
    """Return what a network keeps besides its trained parameters, frozen ones split."""
    # fsdp splits frozen parameters alone: whatever a step may change is small, and
    # whole. With zero 1 parameters are whole, frozen or not.
    frozen = task.frozen_params

    def place(leaf: LeafSharding) -> LeafSharding:
        fixed = leaf.name in frozen
        split = fixed and plan.zero == 3 and leaf.update == "constant"
        dim = leaf.fsdp_dim if split else None
        return replace(leaf, has_gradient=not fixed, fsdp_dim=dim)

    return tuple(map(place, stats))


def _check_whole_samples(task: Task, plan: Plan) -> None:
    """Refuse what reads whole samples: metrics of one's own."""
    if task.metrics:
        raise BadInput(
            "metrics of your own would see a part of each sample",
            rule="a metric is a function of a sample's whole outputs, and the context "
            "axis splits them",
            values=f"plan.mesh.context = {plan.mesh.context}, "
            f"metrics {', '.join(task.metrics)}",
            remedy="no metrics, or plan.mesh.context=1",
        )


def _with_ledgers(
    layout: Layout,
    calls: Sequence[LayerCall],
    outputs: Any,
    reads: ParameterReads,
    network: nnx.Module,
    stages: Stages | None,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
    attention: Sequence[AttentionInputs],
) -> Layout:
    """Return a layout with the ledger of what a step moves and computes.

    One, or one for each device along pipe.

    Args:
        layout: without ledgers.
        calls: of the network's layers, on one microbatch.
        outputs: shapes of what the network returns.
        reads: parameters, and which of them the backward pass reads.
        network: abstract, its layers not bound.
        stages: of the network, where it is cut.
        trace_cache: traces of the same network.
        repeated_blocks: equal blocks, of which one is traced.
        attention: what the network's attention reads.
    """
    micro, syncs = layout.task.microbatches, layout.outer_syncs
    # What was decided, where the plan says `auto`.
    is_chunked = bool(layout.logits_product)
    plan = replace(layout.plan, logits="chunks" if is_chunked else "whole")
    ledger = partial(
        build_ledger,
        plan,
        calls,
        layout.tensor_roles,
        outer_syncs=syncs,
        attention=attention,
    )
    # Parameters behind the last loop are still whole when the backward pass begins
    # there.
    own_reads = replace(
        reads,
        leaves=layout.param_shardings,
        backward_reads=tuple(
            read and i not in layout.kept_params
            for i, read in enumerate(reads.backward_reads)
        ),
    )
    kept = layout.state_layout.stat_shardings
    synced = (
        *variable_traffic(layout.plan, kept, sync_axes(layout.plan, kept)),
        *layout.objective.batch_traffic(plan, layout.batch_shapes),
        *routing_traffic(layout.plan, layout.task),
    )
    if stages is None:

        def write() -> Ledger:
            rows = parameter_traffic(plan, own_reads, layout.reduction)
            loss_rows = layout.objective.loss_traffic(plan, outputs, micro)
            whole = ledger(rows, microbatches=micro).with_rows((*synced, *loss_rows))
            return replace(whole, update_flops=matrix_flops(own_reads))

        # What a plan says of activations changes which parameters a backward pass
        # reads, and nothing else that a ledger has.
        others = replace(plan.without_remat, offload=())
        key = ("ledger", others, layout.state_layout, own_reads.backward_reads)
        whole = trace_cache.get_or_compute(key, write)
        return replace(layout, ledgers=(replace(whole, plan=plan),))
    sent = (
        *sync_gradients.stage_transfer_traffic(layout, trace_cache, repeated_blocks),
        *synced,
    )
    works, last = device_work_counts(layout.plan, micro), stages.count - 1
    # Devices differ in their layers; all that update as often move parameters alike.
    rows_by_updates = {
        updates: parameter_traffic(plan, own_reads, layout.reduction, updates)
        for updates in {work.updates for work in works}
    }
    equal_ranks = _equal_ranks(
        plan,
        stages,
        works,
        equal_call_blocks(calls, layout.tensor_roles, repeated_blocks),
    )
    of_layers: list[Ledger] = []
    ledgers = []
    for device, (work, first) in enumerate(zip(works, equal_ranks, strict=True)):
        own = *sent, *async_steps.stage_reduction_traffic(layout, device)
        held = stages.placement.stages_of(device)
        # The last stage has the loss.
        if last in held:
            loss = layout.objective.loss_traffic(plan, outputs, work.microbatches)
            own = *own, *loss
        if first == device:
            rows = rows_by_updates[work.updates]
            calls_of = partial(device_calls, stages, network, device=device)
            whole = ledger(rows, microbatches=work.microbatches, select_calls=calls_of)
        else:
            names = zip(stages.blocks_of(first), stages.blocks_of(device), strict=True)
            whole = of_layers[first].renamed(dict(names))
        of_layers.append(whole)
        ledgers.append(whole.with_rows(own))
    return replace(layout, ledgers=tuple(ledgers), equal_ranks=equal_ranks)


def _equal_ranks(
    plan: Plan,
    stages: Stages,
    works: Sequence[DeviceWorkCounts],
    equal_blocks: Mapping[str, str],
) -> tuple[int, ...]:
    """Return for each device along pipe the first one with equal stages.

    Args:
        plan: the layout.
        stages: of the network.
        works: microbatches and updates of each device.
        equal_blocks: blocks that are equal to another one, by name.
    """
    ranks = range(len(works))
    # Asynchronous stages are not alike: each sums gradients at a time of its own.
    if plan.pipe.flows:
        return tuple(ranks)
    first: dict[Any, int] = {}

    def form(rank: int) -> Any:
        held = (stages.blocks[k] for k in stages.placement.stages_of(rank))
        return works[rank], *(
            tuple(equal_blocks.get(b, b) for b in own) for own in held
        )

    return tuple(first.setdefault(form(rank), rank) for rank in ranks)


def _read_samples(
    task: Task,
    network: nnx.Module,
    inputs: Inputs,
    batch_shapes: BatchShapes,
    trace_cache: TraceCache,
) -> tuple[RepeatedBlocks, Any]:
    """Return what `check_samples` does, which no layout of a network changes."""
    repeated, outputs = trace_cache.get_or_compute(
        "samples",
        lambda: check_samples(
            task, network, inputs, batch_shapes, constant_rng_binder(inputs)
        ),
    )
    return trace_cache.get_or_compute("alike", lambda: repeated), outputs


def _logits_product(
    task: Task, plan: Plan, platform: str, network: nnx.Module, shapes: BatchShapes
) -> str:
    """Return the use of the layer whose logits are not multiplied out at once.

    Empty where the loss has whole logits: the network or the objective has no others,
    the plan wants them, or they are small.

    Raises:
        BadInput: the plan wants chunks of logits that are always whole.
    """
    declared, objective = getattr(network, "answers", None), task.objective
    if not (isinstance(declared, LogitsLayer) and declared.is_output):
        declared = None
    if declared is None or not objective.takes_product:
        if plan.logits == "chunks":
            what = "returns its logits as they are" if declared else "declares none"
            raise BadInput(
                "there are no logits to be taken in chunks",
                rule="plan.logits=chunks needs a network that declares the layer of "
                "its logits, LogitsLayer(..., is_output=True), and the objective "
                "NextToken, with no method of your own",
                values=f"{type(network).__name__} {what}, "
                f"{type(objective).__name__} scores it",
                remedy="plan.logits=auto",
            )
        return ""
    if plan.logits == "whole":
        return ""
    key, _ = objective.targets[0]
    parts = plan.mesh.batch_shards * plan.replicas * task.microbatches
    parts *= plan.mesh.context
    # Of one call of the network on one device.
    tokens = math.prod(shapes[key].shape) // parts
    is_large = platform != "cpu" and tokens > MAX_CHUNK_TOKENS
    used = plan.logits == "chunks" or is_large
    return role_key(declared.layer, declared.method) if used else ""


def _scan_equal_blocks(
    layout: Layout,
    network: nnx.Module,
    inputs: Inputs,
    reads: ParameterReads,
    trace_cache: TraceCache,
) -> Layout:
    """Return a layout whose equal blocks run as loops, where its plan wants them.

    Args:
        layout: without loops.
        network: abstract, its layers not bound.
        inputs: shapes of what it is called on.
        reads: parameters, and which of them the backward pass reads.
        trace_cache: traces of the same network.
    """
    plan = layout.plan
    paths = trace_cache.get_or_compute("paths", lambda: [*modules_by_path(network)])
    cut = plan.stages > 1 or not hasattr(network, "chain")
    if cut or not scans_blocks(plan, layout.mesh):
        remat.check_activation_patterns(plan, paths, ())
        return layout
    state, prepare = layout.task.state, constant_rng_binder(inputs)

    def find_alike() -> set[str]:
        """Return the blocks that return arrays of the shapes they are given."""
        found = set[str]()
        jax.eval_shape(partial(trace, found), state.params, state.stats, *inputs)
        return found

    def trace(found: set[str], params: Any, stats: Any, *arrays: jax.Array) -> None:
        model: Any = nnx.merge(layout.task.graph, params, stats, copy=True)
        model.train()
        prepare(model)
        x: Any = arrays if len(arrays) > 1 else arrays[0]
        for name, block in model.chain():
            given, x = x, block(x)
            # Images in a loop cost more than they save: a TPU lays them out anew for
            # each iteration (ResNet-50: 2.4 times the memory, 1.5 times the cycles).
            is_image = max((x.ndim for x in jax.tree.leaves(given)), default=0) > 3
            is_wanted = plan.scan == "on" or plan.offload or not is_image
            if is_wanted and jax.tree.map(jnp.shape, given) == jax.tree.map(
                jnp.shape, x
            ):
                found.add(name)

    # The same for all plans of a network, but for microbatches.
    alike = trace_cache.get_or_compute(
        (
            "outputs alike",
            plan.scan,
            *plan.offload,
            *((x.shape, x.dtype) for x in inputs),
        ),
        find_alike,
    )
    bound: Any = nnx.merge(layout.task.graph, state.params, state.stats)
    bound.train()
    layout.bind_layers(bound)
    blocks = tuple(name for name, _ in bound.chain())
    # Blocks share a loop only if a step treats them alike: the same parameters are
    # gathered again, and the same activations are computed again or moved to the host.
    marks: dict[str, object] = {
        leaf.name: read
        for leaf, read in zip(reads.gathered, reads.backward_reads, strict=True)
    }
    remade = plan.remade(blocks)
    # Behind frozen blocks alone a block hands back no gradient, as others in a loop do.
    trained = {leaf.name.partition("/")[0] for leaf in reads.leaves}
    first = next((i for i, name in enumerate(blocks) if name in trained), 0)
    ends = set(blocks[: first + 1]) if layout.task.is_partial else set()
    marks |= {
        name: (name in remade, name in ends, remat.memory_actions(plan, name, block))
        for name, block in bound.chain()
    }
    scans = find_block_scans(bound, alike.__contains__, reads.gathered, marks)
    in_loops = {block for scan in scans for block in scan.blocks}
    remat.check_activation_patterns(plan, paths, in_loops)
    looped = {i for scan in scans for each in scan.indices for i in each}
    params = tuple(
        replace(leaf, scanned=i in looped) for i, leaf in enumerate(reads.leaves)
    )
    held = LeafStateLayout(
        param_shardings=params, stat_shardings=layout.state_layout.stat_shardings
    )
    return replace(
        layout,
        block_scans=scans,
        kept_params=_last_params(network, scans, reads),
        state_layout=held,
    )


def _last_params(
    network: Any, scans: Sequence[BlockScan], reads: ParameterReads
) -> frozenset[int]:
    """Return the indices of the parameters that blocks behind the last loop use."""
    if not scans:
        return frozenset()
    names = [name for name, _ in network.chain()]
    behind = names[names.index(scans[-1].blocks[-1]) + 1 :]
    used = dict(variable_ids_by_block(network))
    ids = frozenset[int]().union(*(used[name] for name in behind))
    return frozenset(
        i
        for i, leaf in enumerate(reads.gathered)
        if id(variable_by_name(network, leaf.name)) in ids
    )


def _backward_reads(
    task: Task,
    plan: Plan,
    parameters: ParameterReads,
    shapes: BatchShapes,
    trace_cache: TraceCache,
    repeated_blocks: RepeatedBlocks,
    product: str,
) -> tuple[bool, ...]:
    """Return which parameters are gathered once more for the backward pass."""
    leaves = parameters.gathered
    frozen = [leaf.name for leaf in parameters.frozen]
    # Otherwise parameters are whole throughout the step, and nothing is dropped in
    # between.
    if plan.zero != 3 or all(leaf.fsdp_dim is None for leaf in leaves):
        return (False,) * len(leaves)
    params = trace_cache.get_or_compute(
        "params", partial(named_leaves, task.state.params)
    )
    names = (*params, *frozen)

    def trace(one: Plan) -> tuple[bool, ...]:
        prepare = partial(defer_logits, use=product)
        loss, values, rest = _loss_function(task, one, repeated_blocks, prepare)
        mean = remat.maybe_checkpoint(one, lambda *args: loss(*args)[0])
        held = named_leaves(rest)
        fixed = {name: _read_shapes(task, held[name]) for name in frozen}
        rest = replace_leaves(rest, held | fixed)
        arrays = [*jax.tree.leaves(values), *fixed.values()]
        read = backward_reads(
            mean,
            jax.tree.leaves(values),
            rest,
            dict(shapes),
            constants=lambda rest, batch: [named_leaves(rest)[n] for n in frozen],
        )
        # Vectors are small, and kept from their first gather.
        again = [each and x.ndim > 1 for each, x in zip(read, arrays, strict=True)]
        found = dict(zip((*leaf_names(values), *frozen), again, strict=True))
        return tuple(repeated_blocks.expand_leaves(found, names))

    def reads(is_remade: bool, until: str) -> tuple[bool, ...]:
        one = replace(plan, remat_end=until) if is_remade else plan.without_remat
        return trace_cache.get_or_compute(
            ("again", is_remade, until, product, *one.remat_saves), lambda: trace(one)
        )

    if not plan.remat_end:
        return reads(plan.remat, "")

    def is_rematerialized() -> tuple[bool, ...]:
        """Return which parameters are used by blocks that are rematerialized."""
        params, stats = task.state.params, task.state.stats
        network = trace_cache.get_or_compute(
            "network", lambda: nnx.merge(task.graph, params, stats)
        )
        used = trace_cache.get_or_compute(
            "variables", lambda: dict(variable_ids_by_block(network))
        )
        first = set[int]().union(*(used[name] for name in plan.remade((*used,))))
        return tuple(id(variable_by_name(network, name)) in first for name in names)

    # Of equal blocks one is traced: the end of rematerialization is moved behind those
    # that are not. Reads are those of a step with it in the first blocks, without in
    # the others.
    again = trace_cache.get_or_compute(("remade", plan.remat_end), is_rematerialized)
    near = repeated_blocks.next_traced(plan.remat_end)
    each = zip(again, reads(True, near), reads(False, ""), strict=True)
    return tuple(inside if remade else outside for remade, inside, outside in each)


def _loss_function(
    task: Task,
    plan: Plan,
    repeated_blocks: RepeatedBlocks,
    prepare: Callable[[nnx.Module], None] = lambda network: None,
) -> tuple[Callable[..., Any], Any, Any]:
    """Return the loss of a network of the traced blocks alone, as a step takes it.

    Args:
        task: what is trained.
        plan: says which blocks are rematerialized.
        repeated_blocks: equal blocks, of which one is traced.
        prepare: called on the traced network before it runs.

    Returns:
        `loss(leaves of the parameters, rest, batch) -> (loss, rest after)`, the shapes
        of the parameters, and those of all else that the network keeps.
    """
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    graph, short, rest = task.split(repeated_blocks.shorten(network))
    values = jax.tree.map(partial(_read_shapes, task), short)

    def make(ids: Any, params: list[Any], stats: Any) -> Any:
        params = jax.tree.unflatten(jax.tree.structure(values), params)
        model = nnx.merge(graph, params, stats, copy=True)
        model.train()
        bind(model, jax.random.key(0), ids)
        remat.tag_activations(plan, model)
        prepare(model)
        return model

    def loss(params: list[Any], stats: Any, batch: Batch) -> Any:
        given = cast_floats(task.objective.model_inputs(batch), task.dtype)
        own = partial(make, batch["id"])
        outputs, after = remat.call_model(plan, own, params, stats, given)
        return task.objective.mean_loss(outputs, batch), after

    return loss, values, rest


def _read_shapes(task: Task, leaf: Any) -> Any:
    """Return a parameter as a step reads it: matrices are cast, vectors are not."""
    return cast_floats(leaf, task.dtype) if leaf.ndim > 1 else leaf


def _read_updates(
    task: Task, plan: Plan, shapes: BatchShapes, repeated_blocks: RepeatedBlocks
) -> tuple[tuple[bool, ...], tuple[StateUpdate, ...]]:
    """Return which parameters have a gradient, and how a step changes the rest.

    Raises:
        BadInput: a step changes the shape or the dtype of a variable.
    """
    whole = plan.without_remat
    loss, values, rest = _loss_function(task, whole, repeated_blocks)
    leaves = jax.tree.leaves(values)

    # The forward trace says it; one of the gradient takes longer.
    traced = jax.make_jaxpr(loss)(leaves, rest, dict(shapes)).jaxpr
    # The first of the results is the loss.
    known = has_gradients(traced, [not i for i in range(len(traced.outvars))])
    gradients = dict(zip(leaf_names(values), known))

    # What a step leaves as it is is the argument itself.
    updates: dict[str, StateUpdate] = {}
    norms = _synchronized_variables(task)
    kept = zip(
        named_leaves(rest).items(),
        traced.invars[len(leaves) :],
        traced.outvars[1:],
    )
    for (name, x), before, after in kept:
        if (after.aval.shape, after.aval.dtype) != (x.shape, x.dtype):
            raise BadInput(
                f"a step changes the form of {name}",
                rule="what a network keeps has one shape and dtype in every step",
                values=f"{x.dtype}{list(x.shape)} before, "
                f"{after.aval.dtype}{list(after.aval.shape)} after",
                remedy="assign an array of the same shape and dtype, such as "
                f"value.astype({x.dtype})",
            )
        if after is before:
            updates[name] = "constant"
        elif name in norms:
            updates[name] = "synchronized"
        else:
            floats = jnp.issubdtype(x.dtype, jnp.inexact)
            updates[name] = "mean" if floats else "maximum"
    names = leaf_names(task.state.params), leaf_names(task.state.stats)
    return (
        tuple(repeated_blocks.expand_leaves(gradients, names[0])),
        tuple(repeated_blocks.expand_leaves(updates, names[1])),
    )


def _read_gradients(
    task: Task,
    plan: Plan,
    shapes: BatchShapes,
    stages: Stages | None,
    trace_cache: TraceCache,
) -> Mapping[CallKey, set[str]]:
    """Return which gradients a step asks each layer for."""
    whole = plan.without_remat

    def trace(task: Task) -> Mapping[CallKey, set[str]]:
        found: dict[CallKey, set[str]] = {}
        prepare = partial(record_gradients, found=found)
        loss, values, rest = _loss_function(task, whole, RepeatedBlocks(), prepare)

        def run(params: list[Any], stats: Any, batch: Batch) -> Any:
            value, back, _ = jax.vjp(
                lambda params: loss(params, stats, batch), params, has_aux=True
            )
            # Calling the backward pass is what makes layers note the gradients they are
            # asked for.
            return back(jnp.ones_like(value))

        jax.eval_shape(run, jax.tree.leaves(values), rest, dict(shapes))
        return found

    found = trace_cache.get_or_compute("gradients", lambda: trace(task))
    if stages is None:
        return found
    # Behind the first stage all stages are handed a gradient of what they are given,
    # whether or not anything before them is trained.
    every = replace(task, frozen=(), trained=())
    handed = trace_cache.get_or_compute("all gradients", lambda: trace(every))
    return {
        key: found[key] if key[0].split(".")[0] in stages.blocks[0] else asked
        for key, asked in handed.items()
    }


def _synchronized_variables(task: Task) -> frozenset[str]:
    """Return the names of variables on which layers make devices agree."""
    network = nnx.merge(task.graph, task.state.params, task.state.stats)
    return frozenset(
        "/".join(map(str, (*path, name)))
        for path, layer in nnx.iter_modules(network)
        if isinstance(layer, BatchNorm)
        for name in ("mean", "var")
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerRequests:
    """What an update asks of all devices; for each request, of which leaves."""

    norms: tuple[tuple[bool, ...], ...]
    """Sums of squares."""
    global_norms: int
    """How often the sum over all leaves."""
    matrices: tuple[tuple[bool, ...], ...]
    """Whole momenta."""
    means: tuple[tuple[MeanRequest | None, ...], ...]
    """Means over a dim."""


def _optimizer_requests(
    task: Task,
    state_shapes: TrainState,
    repeated_blocks: RepeatedBlocks,
    has_gradient_norm: bool,
) -> OptimizerRequests:
    """Return for which leaves a task's optimizer requests norms and whole matrices.

    Args:
        task: task with the optimizer.
        state_shapes: shapes on the devices.
        repeated_blocks: equal blocks, of which one is traced.
        has_gradient_norm: whether the step returns the norm of its gradient.
    """
    # Leaves of equal blocks are treated alike, and so are slots of a kind: few of them
    # are traced. Each slot is represented by the first of its kind, by name.
    representatives: dict[str, str] = {}
    first: dict[Any, str] = {}
    if isinstance(state_shapes.params, SlotArrays):
        for kind in ("matrices", "vectors"):
            for number, slot in getattr(state_shapes.params, kind).items():
                form, name = (kind, len(slot.shape), slot.dtype), f"{kind}/{number}"
                representatives[name] = first.setdefault(form, name)
    kept = set(representatives.values())

    def few(node: Any) -> Any:
        if not isinstance(node, SlotArrays):
            return node
        slots = {
            kind: {
                k: x for k, x in getattr(node, kind).items() if f"{kind}/{k}" in kept
            }
            for kind in ("matrices", "vectors")
        }
        return replace(node, **slots)

    params, opt = jax.tree.map(
        few,
        repeated_blocks.prune_state((state_shapes.params, state_shapes.opt)),
        is_leaf=lambda node: isinstance(node, SlotArrays),
    )

    # The optimizer is traced with functions in place of the sums over devices, which
    # note that they are called.
    norms: list[tuple[bool, ...]] = []
    matrices: list[tuple[bool, ...]] = []
    totals: list[jax.Array] = []
    dim_means: list[tuple[MeanRequest | None, ...]] = []

    def means(tree: Any, dim: int) -> Any:
        found = local_means(tree, dim)
        leaves = leaves_with_masked(found)
        dim_means.append(
            tuple(None if is_masked(x) else (x.ndim + dim, x.shape) for x in leaves)
        )
        return found

    def note(requests: list[tuple[bool, ...]], tree: Any) -> Any:
        requests.append(tuple(not is_masked(leaf) for leaf in leaves_with_masked(tree)))
        return tree

    def squares(tree: Any) -> Any:
        return local_sum_squares(note(norms, tree))

    def total(squares: Any) -> jax.Array:
        totals.append(optax.tree.sum(squares))
        return totals[-1]

    # As in `train/step.py`: what is asked a second time is not summed again.
    once, total_once = memoize_sums(squares), memoize_sums(total)

    def update(grads: Any, params: Any, opt: Any) -> Any:
        move = optax.with_extra_args_support(task.optimizer)
        if has_gradient_norm:
            global_norm(grads, once, total_once)
        with jax.numpy_dtype_promotion("standard"):
            return move.update(
                grads,
                opt,
                params,
                squares=once,
                total=total_once,
                unshard=partial(note, matrices),
                means=means,
            )

    # Gradients have the shapes of parameters.
    jax.eval_shape(update, params, params, opt)
    traced = leaf_names(params)
    names = [
        representatives.get(name, name) for name in leaf_names(state_shapes.params)
    ]

    def of_all(requests: list[tuple[ValueT, ...]]) -> tuple[tuple[ValueT, ...], ...]:
        own = (dict(zip(traced, one, strict=True)) for one in requests)
        return tuple(tuple(repeated_blocks.expand_leaves(one, names)) for one in own)

    return OptimizerRequests(
        norms=of_all(norms),
        global_norms=len(totals),
        matrices=of_all(matrices),
        means=of_all(dim_means),
    )
