"""A program: a task compiled for a layout, audited, with what it needs to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxdist.collectives.hlo import Move, read_collectives
from jaxdist.partition import audit
from jaxdist.train.layout import Layout, Shapes
from jaxdist.train.state import TrainState
from jaxdist.train.step import eval_step, train_step


@dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled training step."""

    layout: Layout
    """What is trained and how it is laid out."""
    moves: tuple[Move, ...]
    """What the compiled step moves."""
    audit: tuple[audit.Row, ...]
    """Both side by side; equal, or compiling would have failed."""
    step: Any
    """The compiled step: `(state, batch) -> (state, loss)`."""
    batch: Mapping[str, NamedSharding]
    """Sharding of each array of a training batch."""
    memory_bytes: int
    """Memory a device needs for the step, by the compiler."""

    @property
    def parameters(self) -> int:
        """Trainable numbers in the network."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.layout.state.params))


def compile_program(layout: Layout) -> Program:
    """Compile a training step and hold it against the plan.

    Raises:
        AuditError: the compiler moves something that the plan does not.
    """
    shardings = layout.batch(layout.shapes)
    step = jax.jit(train_step(layout), donate_argnums=0)
    lowered = step.lower(layout.state, _placed(layout.shapes, shardings))
    compiled = lowered.compile()
    moves = read_collectives(compiled.as_text() or "", dict(layout.mesh.shape))
    return Program(
        layout=layout,
        moves=moves,
        audit=audit.check(moves, layout.ledger),
        step=compiled,
        batch=shardings,
        memory_bytes=_memory(compiled),
    )


def compile_score(layout: Layout, shapes: Shapes) -> Any:
    """Compile `score(params, stats, batch)` for batches of these shapes."""
    state, batch = layout.state, _placed(shapes, layout.batch(shapes))
    return jax.jit(eval_step(layout)).lower(state.params, state.stats, batch).compile()


def initial_state(layout: Layout) -> TrainState:
    """Compute the state before the first step, each device its part."""
    places = jax.tree.map(lambda x: x.sharding, layout.state)
    return jax.jit(layout.task.init, out_shardings=places)()


def _placed(
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
