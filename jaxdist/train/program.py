"""A program: a task compiled for a layout, audited, with what it needs to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxdist.collectives.hlo import Move, read_collectives
from jaxdist.partition import audit, data, spatial, uses
from jaxdist.partition.ledger import Ledger, write_ledger
from jaxdist.profile.calls import read_calls
from jaxdist.train.objective import cast
from jaxdist.train.state import TrainState
from jaxdist.train.step import Layout, Shapes, eval_step, train_step
from jaxdist.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled training step."""

    task: Task
    """What is trained."""
    layout: Layout
    """How it is laid out."""
    ledger: Ledger
    """What the plan says it moves."""
    moves: tuple[Move, ...]
    """What the compiled step moves."""
    audit: tuple[audit.Row, ...]
    """Both side by side; equal, or compiling would have failed."""
    step: Any
    """The compiled step: `(state, batch) -> (state, loss)`."""
    state: TrainState
    """Shapes, dtypes and shardings of the state."""
    batch: Mapping[str, NamedSharding]
    """Sharding of each array of a training batch."""
    memory_bytes: int
    """Memory a device needs for the step, by the compiler."""

    @property
    def parameters(self) -> int:
        """Trainable numbers in the network."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))


def check(task: Task, layout: Layout, shapes: Shapes) -> Ledger:
    """Refuse a layout that the network or the batch cannot take, before compiling.

    Args:
        task: what is trained.
        layout: how it is laid out.
        shapes: a global training batch.

    Raises:
        BadInput: naming the layer or the batch, the numbers and what works.
    """
    inputs = cast(task.objective.arguments(shapes), task.dtype)
    uses.check(layout.plan, inputs[0].shape)
    data.check(layout.plan, inputs[0].shape[0])
    state = task.state
    calls = read_calls(task.graph, (state.params, state.stats), *inputs)
    spatial.check(layout.plan, calls)
    return write_ledger(layout.plan, calls, state.params)


def compile_program(
    task: Task, layout: Layout, shapes: Shapes, ledger: Ledger | None = None
) -> Program:
    """Compile a training step and hold it against the plan.

    Args:
        task: what is trained.
        layout: how it is laid out.
        shapes: a global training batch: the objective's keys and `id [B]`.
        ledger: what `check` returned for the same arguments, if it was called.

    Raises:
        BadInput: the layout cannot be run.
        AuditError: the compiler moves something that the plan does not.
    """
    ledger = ledger or check(task, layout, shapes)
    state = placed(task.state, layout)
    shardings = layout.batch(shapes)
    step = jax.jit(train_step(task, layout), donate_argnums=0)
    compiled = step.lower(state, _placed_batch(shapes, shardings)).compile()
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    return Program(
        task=task,
        layout=layout,
        ledger=ledger,
        moves=moves,
        audit=audit.check(moves, ledger),
        step=compiled,
        state=state,
        batch=shardings,
        memory_bytes=_memory(compiled),
    )


def compile_score(task: Task, layout: Layout, shapes: Shapes) -> Any:
    """Compile `score(params, stats, batch)` for batches of these shapes."""
    state = placed(task.state, layout)
    batch = _placed_batch(shapes, layout.batch(shapes))
    score = jax.jit(eval_step(task, layout))
    return score.lower(state.params, state.stats, batch).compile()


def initial_state(task: Task, layout: Layout) -> TrainState:
    """Compute the state before the first step, on every device."""
    return jax.jit(task.init, out_shardings=layout.whole)()


def placed(state: TrainState, layout: Layout) -> TrainState:
    """Give the shapes of a state the layout's shardings."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.whole), state
    )


def _placed_batch(
    shapes: Shapes, shardings: Mapping[str, NamedSharding]
) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        key: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=shardings[key])
        for key, s in shapes.items()
    }


def _memory(compiled: Any) -> int:
    """Sum the compiler's own account: what comes in, goes out and lives between."""
    sizes = compiled.memory_analysis()
    total = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return int(total + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes)
