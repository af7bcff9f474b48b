"""A compiled training step, compared with the plan, and what a run needs beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxdist.collectives.hlo_collectives import CollectiveOp, read_collectives
from jaxdist.partition import audit
from jaxdist.partition.audit import AuditError, compiled_memory_bytes
from jaxdist.partition.flops import LayerFlops, compare_flops
from jaxdist.partition.gradient_buckets import GradientReduction, without_compression
from jaxdist.partition.outer_sync import OuterSync
from jaxdist.pipeline.plan_schedule import device_work_counts, plan_schedule
from jaxdist.pipeline.stage_traffic import device_collectives
from jaxdist.profile.trace import prune_jaxpr
from jaxdist.train.diloco import outer_step
from jaxdist.train.eval_step import make_eval_step
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.state import TrainState
from jaxdist.train.step import make_train_step


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
    """The compiled step: `(state, batch) -> (state, loss)`."""
    warmup_step: Any
    """The step of the plan's warm-up, which sums exactly; None where there is none."""
    outer_steps: tuple[CompiledOuterStep, ...]
    """Outer steps, in the order of the layout's syncs."""
    batch_shardings: Mapping[str, NamedSharding]
    """Sharding of each array of a training batch."""
    memory_bytes: int
    """Memory a device needs for the step, by the compiler."""

    @property
    def num_params(self) -> int:
        """Trainable numbers in the network."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.layout.task.state.params))

    def raise_difference(self) -> None:
        """Refuse a step that differs from its plan.

        Raises:
            AuditError: the first difference.
        """
        for difference in self.differences:
            raise difference

    def run(self, number: int, state: TrainState, batch: Any) -> Any:
        """Do a step, counted from 1, and the outer step that may follow it.

        Returns:
            The next state and the loss: of the step, or of each replica's.
        """
        early = (
            number <= self.layout.plan.reduce.warmup_steps
            and self.warmup_step is not None
        )
        state, loss = (self.warmup_step if early else self.compiled_step)(state, batch)
        for join in self.outer_steps:
            if join.sync.due(number):
                state = join.compiled(state)
        return state, loss


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """A training step as jax has lowered it to StableHLO, before it is compiled."""

    layout: Layout
    """What is trained and how it is laid out."""
    step: Any
    """The lowered step, a `jax.stages.Lowered`."""
    layer_flops: tuple[LayerFlops, ...]
    """FLOPs a device of each layer with a kernel, by the plan and in the step."""

    def compile(self) -> Program:
        """Compile the step, and find its differences from the plan."""
        layout, flops = self.layout, self.layer_flops
        compiled = self.step.compile()
        moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
        joins = tuple(_compile_outer_step(layout, sync) for sync in layout.outer_syncs)
        warm, differ = _compile_warmup_step(layout)
        found = (
            *_iter_differences(layout, moves, flops),
            *differ,
            *(
                e
                for j in joins
                for e in audit.find_differences(
                    j.collectives, layout.ledger.sync_ledger(j.sync)
                )
            ),
        )
        return Program(
            layout=layout,
            collectives=moves,
            audit_rows=audit.compare_collectives(
                _busiest_collectives(layout, moves), layout.ledger
            ),
            layer_flops=flops,
            differences=found,
            compiled_step=compiled,
            warmup_step=warm,
            outer_steps=joins,
            batch_shardings=layout.batch_shardings(layout.batch_shapes),
            memory_bytes=compiled_memory_bytes(compiled),
        )


def lower_program(layout: Layout) -> LoweredProgram:
    """Trace and lower a training step; nothing is compiled.

    Args:
        layout: the task, its plan and mesh.
    """
    traced = trace_train_step(layout)
    flops = _layer_flops(layout, prune_jaxpr(traced.jaxpr.jaxpr))
    return LoweredProgram(layout=layout, step=traced.lower(), layer_flops=flops)


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
            _device_collectives(layout, collectives, device), ledger, layer_flops
        )
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
    found = compare_flops(planned, step)
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


def _compile_outer_step(layout: Layout, sync: OuterSync) -> CompiledOuterStep:
    """Compile an outer step and set it beside the plan."""
    compiled = trace_outer_step(layout, sync).lower().compile()
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    beside = audit.compare_collectives(moves, layout.ledger.sync_ledger(sync))
    return CompiledOuterStep(
        sync=sync, compiled=compiled, collectives=moves, audit_rows=beside
    )


def _compile_warmup_step(layout: Layout) -> tuple[Any, tuple[AuditError, ...]]:
    """Compile the step that sums exactly, where the plan begins with it.

    Returns:
        The program, and where it differs from the plan with such sums.
    """
    if not (layout.plan.reduce.warmup_steps and layout.reduction.buckets):
        return None, ()
    exact = without_compression(layout.reduction)
    compiled = trace_train_step(layout, exact).lower().compile()
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    ledger = layout.ledger.with_reduction(exact, layout.param_shardings)
    return compiled, tuple(audit.find_differences(moves, ledger))


def compile_eval_step(layout: Layout, batch_shapes: BatchShapes) -> Any:
    """Compile `score(params, stats, batch)` for batches of these shapes."""
    state = layout.state
    batch = _with_shardings(
        layout.padded_shapes(batch_shapes), layout.batch_shardings(batch_shapes)
    )
    return (
        jax.jit(make_eval_step(layout))
        .lower(state.params, state.stats, batch)
        .compile()
    )


def initial_state(layout: Layout) -> TrainState:
    """Compute the state before the first step, each device its part."""
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    return jax.jit(layout.init_state, out_shardings=places)()


def _with_shardings(
    shapes: BatchShapes, shardings: Mapping[str, NamedSharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        key: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=shardings[key])
        for key, s in shapes.items()
    }
