"""A training step lowered and compiled, held against the plan, and its fingerprint.

Fingerprints of a lowered step, to compare it between processes before compilation.

JAX lowers a step to StableHLO. The text has neither source lines nor addresses, so
processes that were started alike have the same text to the letter; where two differ,
names of parameters and counts of operations show the difference sooner than the text.

Stage traffic: what the devices of one stage move, in a program for all stages.

A compiled pipeline has the collectives of every stage, in loops of one iteration or
none. A device runs those of its own stages, once for each microbatch.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import jax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.hlo_collectives import CollectiveOp, read_collectives
from jaxdist.core.axes import sub_axis_name
from jaxdist.layers.attention import FUSED_KERNELS
from jaxdist.partition import audit
from jaxdist.partition.audit import AuditError, compiled_memory_bytes
from jaxdist.partition.compiler_rewrites import CompilerRewrite, undo_rewrites
from jaxdist.partition.gradient_buckets import GradientReduction, without_compression
from jaxdist.partition.ledger import LayerFlops, compare_flops
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.pipeline.async_executor import UPDATE_SCOPE
from jaxdist.pipeline.plan_schedule import (
    DeviceWorkCounts,
    StagePlacement,
    device_work_counts,
    plan_schedule,
)
from jaxdist.profile.flops import fused_kernel_flops, walk_jaxpr
from jaxdist.profile.trace import modules_by_path, prune_jaxpr
from jaxdist.train.checkpoint.manifest import leaf_metadata
from jaxdist.train.diloco import outer_step
from jaxdist.train.eval_step import make_eval_step, make_predict_step
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.state import TrainState, named_leaves
from jaxdist.train.step import make_train_step
from jaxdist.train.step_metrics import StepMetrics

_STAGE: Final = re.compile(r"stage(\d+)\.(?:forward|backward|weights)")


def device_collectives(
    collectives: Iterable[CollectiveOp],
    placement: StagePlacement,
    device: int,
    counts: DeviceWorkCounts,
    supersteps: int,
) -> Iterator[CollectiveOp]:
    """Yield the collectives of one device of a pipeline in one step.

    Args:
        collectives: of the compiled program, those of stages once for each superstep.
        placement: which stages the device has.
        device: along the pipe axis.
        counts: how often it does what in a step.
        supersteps: of the schedule.
    """
    # A device without replicas takes no part in sums over them.
    replicas = placement.replicas_of(device)
    for op in collectives:
        move, loops = op, "/".join(op.loops)
        if op.has_uneven_groups:
            # A sum over the replicas of stages, which differ in number.
            if replicas == 1:
                continue
            axes = (sub_axis_name("pipe", replicas),)
            move = replace(op, axes=axes, group_size=replicas, has_uneven_groups=False)
        found = _STAGE.search(loops)
        if UPDATE_SCOPE in loops:
            count = counts.updates
        # All devices take part in what is of no stage, as often as the program has it.
        elif found is None:
            yield move
            continue
        elif int(found[1]) in placement.stages_of(device):
            count = counts.microbatches
        else:
            continue
        # The program counts one iteration a superstep. Loops inside of it, over the
        # steps of an LSTM, count as often as they go round.
        yield replace(move.repeat(count, supersteps), bounded=True)


@dataclass(frozen=True, kw_only=True)
class CompiledOuterStep:
    """One compiled outer step."""

    sync: OuterSync
    """What replicas average in it, and when."""
    compiled: Any
    """The compiled program: `(state) -> state`."""
    collectives: tuple[CollectiveOp, ...]
    """What it moves."""
    audit_rows: tuple[audit.AuditRow, ...]
    """The same beside the plan."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled training step."""

    layout: Layout
    """What is trained and how it is laid out."""
    collectives: tuple[CollectiveOp, ...]
    """What the compiled step moves."""
    audit_rows: tuple[audit.AuditRow, ...]
    """Both side by side."""
    layer_flops: tuple[LayerFlops, ...]
    """FLOPs a device of each layer with a kernel, by the plan and in the step."""
    differences: tuple[AuditError, ...]
    """What the step does and the plan does not."""
    compiled_step: Any
    """The compiled step: `(state, batch) -> (state, metrics)`."""
    warmup_step: Any
    """The step of the plan's warm-up, which sums exactly; None where there is none."""
    outer_steps: tuple[CompiledOuterStep, ...]
    """Outer steps, in the order of the layout's syncs."""
    batch_shardings: Mapping[str, NamedSharding]
    """Sharding of each array of a training batch."""
    attention: str = ""
    """Kernel of its attention; empty where the network has none."""

    @cached_property
    def memory_bytes(self) -> int:
        """Memory a device needs for the step, by the compiler."""
        # Asked for late: the compiler makes a copy of the whole program to answer.
        return compiled_memory_bytes(self.compiled_step)

    @property
    def rewrites(self) -> tuple[CompilerRewrite, ...]:
        """What the compiler sends in another form, on the devices that move most."""
        layout = self.layout
        moves = _busiest_collectives(layout, self.collectives)
        planned = layout.ledger.payload_by_axes()
        return undo_rewrites(moves, planned, layout.compiler_rules).rewrites

    @property
    def num_params(self) -> int:
        """Trainable numbers in the network."""
        return self.layout.task.num_params

    @property
    def num_frozen(self) -> int:
        """Numbers of frozen parameters."""
        return self.layout.task.num_frozen

    def raise_difference(self) -> None:
        """Refuse a step that differs from its plan.

        Raises:
            AuditError: the first difference.
        """
        for difference in self.differences:
            raise difference

    def run(
        self, number: int, state: TrainState, batch: Any
    ) -> tuple[TrainState, StepMetrics]:
        """Do a step, counted from 1, and the outer step that may follow it.

        Returns:
            The next state and the metrics: of the step, or of each replica's.
        """
        early = (
            number <= self.layout.plan.reduce.warmup_steps
            and self.warmup_step is not None
        )
        step = self.warmup_step if early else self.compiled_step
        state, metrics = step(state, batch)
        for join in self.outer_steps:
            if join.sync.due(number):
                state = join.compiled(state)
        return state, metrics


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """A training step as jax has lowered it to StableHLO, before it is compiled."""

    layout: Layout
    """What is trained and how it is laid out."""
    step: Any
    """The lowered step, a `jax.stages.Lowered`."""
    layer_flops: tuple[LayerFlops, ...]
    """FLOPs a device of each layer with a kernel, by the plan and in the step."""
    attention: str = ""
    """Kernel of its attention; empty where the network has none."""
    attention_flops: Mapping[str, int] = field(default_factory=dict)
    """FLOPs a device of the products in fused kernels, by layer."""

    def compile(self, options: Mapping[str, str | bool] | None = None) -> Program:
        """Compile the step, and find its differences from the plan.

        Args:
            options: of the compiler, by name.
        """
        layout, flops = self.layout, self.layer_flops
        given = dict(options) if options else None
        compiled = self.step.compile(compiler_options=given)
        moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
        joins = tuple(
            _compile_outer_step(layout, sync, given) for sync in layout.outer_syncs
        )
        warm, differ = _compile_warmup_step(layout, given)
        # The step, that of a warm-up and each outer step have ledgers of their own.
        found = (
            *_iter_differences(layout, moves, flops),
            *differ,
            *(
                e
                for j in joins
                for e in audit.find_differences(
                    j.collectives,
                    layout.ledger.sync_ledger(j.sync),
                    rules=layout.compiler_rules,
                )
            ),
        )
        return Program(
            layout=layout,
            collectives=moves,
            audit_rows=audit.compare_collectives(
                _busiest_collectives(layout, moves),
                layout.ledger,
                layout.compiler_rules,
            ),
            layer_flops=flops,
            differences=found,
            compiled_step=compiled,
            warmup_step=warm,
            outer_steps=joins,
            batch_shardings=layout.batch_shardings(layout.batch_shapes),
            attention=self.attention,
        )


def lower_program(layout: Layout) -> LoweredProgram:
    """Trace and lower a training step; nothing is compiled.

    Args:
        layout: the task, its plan and mesh.
    """
    traced = trace_train_step(layout)
    step = prune_jaxpr(traced.jaxpr.jaxpr)
    return LoweredProgram(
        layout=layout,
        step=traced.lower(),
        layer_flops=_layer_flops(layout, step),
        **_attention(layout, step),
    )


def _attention(layout: Layout, step: Any) -> dict[str, Any]:
    """Return the kernel of attention in a traced step; its FLOPs where it is fused."""
    state = layout.task.state
    network = nnx.merge(layout.task.graph, state.params, state.stats)
    layers = modules_by_path(network)
    flops = Counter[str]()
    for op in walk_jaxpr(step):
        if each := fused_kernel_flops(op.eqn):
            # The innermost of its scopes that is a layer.
            owner = next(
                (scope for scope in reversed(op.scopes) if scope in layers), ""
            )
            flops[owner] += op.trip_count * each
    if flops:
        # Where a platform has none, the primitive is lowered as it is written out.
        kernel = FUSED_KERNELS.get(layout.platform, "einsum")
        return {"attention": kernel, "attention_flops": flops}
    attends = any(hasattr(x, "attention_platform") for x in layers.values())
    return {"attention": "einsum" if attends else ""}


def compile_program(layout: Layout) -> Program:
    """Lower and compile a training step; it must be as planned.

    Args:
        layout: the task, its plan and mesh.

    Raises:
        AuditError: the program moves or computes something that the plan does not.
    """
    program = lower_program(layout).compile()
    program.raise_difference()
    return program


def _iter_differences(
    layout: Layout,
    collectives: Sequence[CollectiveOp],
    layer_flops: Sequence[LayerFlops],
) -> Iterator[AuditError]:
    """Yield where a step differs from the plan, on any device along the pipe axis."""
    for device, ledger in enumerate(layout.ledgers):
        yield from audit.find_differences(
            _device_collectives(layout, collectives, device),
            ledger,
            layer_flops,
            layout.compiler_rules,
        )
        # FLOPs are those of the program for all devices: compared once.
        layer_flops = ()


def _busiest_collectives(
    layout: Layout, collectives: Sequence[CollectiveOp]
) -> Sequence[CollectiveOp]:
    """Return what those devices move that move most."""
    return _device_collectives(layout, collectives, layout.ledgers.index(layout.ledger))


def _device_collectives(
    layout: Layout, collectives: Sequence[CollectiveOp], device: int
) -> Sequence[CollectiveOp]:
    if layout.slot_layout is None:
        return collectives
    micro, places = layout.task.microbatches, layout.slot_layout.stages.placement
    own = device_work_counts(layout.plan, micro)[device]
    beats = plan_schedule(layout.plan, micro).exchanges
    return tuple(device_collectives(collectives, places, device, own, beats))


def _layer_flops(layout: Layout, step: Any) -> tuple[LayerFlops, ...]:
    """Set the work of a traced step beside the plan's."""
    planned = {k: v for one in layout.ledgers for k, v in one.layer_flops.items()}
    found = compare_flops(planned, layout.traced_flops(step, planned))
    if layout.slot_layout is None:
        return found
    # The trace has a stage's work in every beat; a device does it for microbatches.
    micro = layout.task.microbatches
    beats = plan_schedule(layout.plan, micro).exchanges
    mine = zip(layout.ledgers, device_work_counts(layout.plan, micro), strict=True)
    times = {
        layer: own.microbatches for ledger, own in mine for layer in ledger.layer_flops
    }
    return tuple(
        replace(w, traced=w.traced * times.get(w.layer, micro) // beats) for w in found
    )


def trace_train_step(layout: Layout, reduction: GradientReduction | None = None) -> Any:
    """Trace a training step on the shapes of its state and batch.

    Args:
        layout: the task, its plan and mesh.
        reduction: how gradients are summed; the plan's where not given.
    """
    # The state is written over: else a device would hold it twice.
    step = jax.jit(make_train_step(layout, reduction), donate_argnums=0)
    batch = _with_shardings(
        layout.padded_shapes(layout.batch_shapes),
        layout.batch_shardings(layout.batch_shapes),
    )
    return step.trace(layout.state, batch)


def trace_outer_step(layout: Layout, sync: OuterSync) -> Any:
    """Trace `join(state) -> state`, an outer step, on the shapes of a layout's state.

    Args:
        layout: task, plan and mesh.
        sync: one of the layout's outer syncs, which says what is averaged.
    """
    step = jax.shard_map(
        partial(outer_step, layout.plan.outer, sync),
        mesh=layout.mesh,
        in_specs=(layout.specs,),
        out_specs=layout.specs,
        check_vma=False,
    )
    return jax.jit(step, donate_argnums=0).trace(layout.state)


def _compile_outer_step(
    layout: Layout, sync: OuterSync, options: dict[str, str | bool] | None
) -> CompiledOuterStep:
    """Compile an outer step and set it beside the plan."""
    # A program of its own and no branch of the step, as a warm-up is.
    lowered = trace_outer_step(layout, sync).lower()
    compiled = lowered.compile(compiler_options=options)
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    beside = audit.compare_collectives(
        moves, layout.ledger.sync_ledger(sync), layout.compiler_rules
    )
    return CompiledOuterStep(
        sync=sync, compiled=compiled, collectives=moves, audit_rows=beside
    )


def _compile_warmup_step(
    layout: Layout, options: dict[str, str | bool] | None
) -> tuple[Any, tuple[AuditError, ...]]:
    """Compile the step that sums exactly, where the plan begins with it.

    Returns:
        The program, and where it differs from the plan with such sums.
    """
    if not (layout.plan.reduce.warmup_steps and layout.reduction.buckets):
        return None, ()
    # A program and no branch: with both in one, no ledger could say which bytes are
    # moved (docs/adr/0024).
    exact = without_compression(layout.reduction)
    lowered = trace_train_step(layout, exact).lower()
    compiled = lowered.compile(compiler_options=options)
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    ledger = layout.ledger.with_reduction(exact, layout.param_shardings)
    return compiled, tuple(
        audit.find_differences(moves, ledger, rules=layout.compiler_rules)
    )


def compile_eval_step(
    layout: Layout,
    batch_shapes: BatchShapes,
    options: Mapping[str, str | bool] | None = None,
) -> Any:
    """Compile `score(params, stats, batch)` for batches of these shapes.

    Args:
        layout: the task and its layout.
        batch_shapes: of a global evaluation batch.
        options: of the compiler, by name.
    """
    # Nothing is donated: training goes on with these parameters.
    step = jax.jit(make_eval_step(layout))
    return _compile_for_batches(layout, step, batch_shapes, options)


def compile_predict_step(
    layout: Layout,
    batch_shapes: BatchShapes,
    options: Mapping[str, str | bool] | None = None,
) -> Any:
    """Compile `predict(params, stats, batch)` for images of these shapes.

    Args:
        layout: the task and its layout.
        batch_shapes: of a global batch; outputs lie as its images do, and whole on
            every device where processes share the mesh, so that each can read them.
        options: of the compiler, by name.
    """
    processes = {device.process_index for device in layout.mesh.devices.flat}
    whole = NamedSharding(layout.mesh, P()) if len(processes) > 1 else None
    step = jax.jit(make_predict_step(layout), out_shardings=whole)
    return _compile_for_batches(layout, step, batch_shapes, options)


def _compile_for_batches(
    layout: Layout,
    step: Any,
    batch_shapes: BatchShapes,
    options: Mapping[str, str | bool] | None,
) -> Any:
    """Compile a function of parameters, statistics and a batch of these shapes."""
    batch = _with_shardings(
        layout.padded_shapes(batch_shapes), layout.batch_shardings(batch_shapes)
    )
    lowered = step.lower(layout.state.params, layout.state.stats, batch)
    return lowered.compile(compiler_options=dict(options) if options else None)


def initial_state(
    layout: Layout, weights: Mapping[str, jax.Array] | None = None
) -> TrainState:
    """Compute the state before the first step, each device its part.

    Args:
        layout: what is trained and how it is laid out.
        weights: arrays to start from by leaf name; None: drawn.
    """
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    # Not donated: jax hands arrays that stay as they are on without a copy.
    return jax.jit(layout.init_state, out_shardings=places)(weights)


def _with_shardings(
    shapes: BatchShapes, shardings: Mapping[str, NamedSharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        key: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=shardings[key])
        for key, s in shapes.items()
    }


_OPERATION: Final = re.compile(
    # A constant is identified by its value, where that is short; all else by its name.
    r"stablehlo\.constant dense<[^\s<>]{1,30}> : tensor<\w+>"
    r"|(?:stablehlo|chlo|sdy)\.[a-z_0-9]+"
)


def step_outline(
    layout: Layout, lowered: Any, layer_flops: Sequence[LayerFlops] = ()
) -> Mapping[str, str]:
    """Return names that tell a lowered step from another, as a person looks for them.

    Args:
        layout: the task and how it is laid out.
        lowered: its step, from `jax.jit(...).lower(...)`.
        layer_flops: FLOPs a device by layer, in the step as it was traced.
    """
    leaves = named_leaves(layout.task.state.params)
    return {
        "parameters": f"{sum(x.size for x in leaves.values()):,}",
        "FLOPs a device": f"{sum(each.traced for each in layer_flops):,}",
        **{f"parameter {name}": leaf_metadata(x).text() for name, x in leaves.items()},
        **dict.fromkeys(sorted(set(_OPERATION.findall(lowered.as_text()))), "is there"),
    }


def operation_counts(lowered: Any) -> Mapping[str, str]:
    """Return how often a lowered step does what, rare things first, and its digest."""
    text = lowered.as_text()
    found = Counter(_OPERATION.findall(text))
    times = sorted(found.items(), key=lambda item: (item[1], item[0]))
    whole = f"{len(text):,} letters (hash {short_hash(text)})"
    return {**{name: f"{n} times" for name, n in times}, "lowered step": whole}


def short_hash(text: str) -> str:
    """Return a short name of a text.

    >>> short_hash("module"), short_hash("modules")
    ('120970d8', 'fbc6c1d4')
    """
    return hashlib.sha256(text.encode()).hexdigest()[:8]
