"""Execution: one program for all stages, a turn of one loop for each beat of a table.

In a beat a device does what its column of the table says: one stage's forward pass of a
microbatch, one's backward pass, both or nothing. What it hands on is permuted along the
pipe axis at the beat's end.

Other stages do other work in the same beat, so nothing in a stage may wait for devices
along the pipe axis; sums and gathers over other axes may.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.device_cond import ScheduleRow, device_cond, tie_to_iteration
from jaxdist.pipeline.flat_messages import FlatBuffers
from jaxdist.pipeline.loop_carry import RECEIVERS, LoopCarry, release_residuals
from jaxdist.pipeline.schedule_arrays import NO_ENTRY, select_kind
from jaxdist.pipeline.stage import (
    Microbatch,
    Pipeline,
    StageTrace,
    bind_vjp_residuals,
    partition_floats,
    trace_stages,
    vjp_residuals,
)
from jaxdist.pipeline.stage_parameters import SlotArrays

PIPE_AXIS = "pipe"


def run_forward(
    pipe: Pipeline, params: SlotArrays, stats: SlotArrays, microbatches: Microbatch
) -> Any:
    """Sum what the last stage returns over microbatches.

    Args:
        pipe: its table has forward passes alone.
        params: what this device holds, dims over fsdp whole.
        stats: its running statistics, which stay as they are.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        The sums, zero on devices without the last stage.
    """
    runner = ScheduleRunner(pipe, params, stats, microbatches, graded=False)
    return runner.run().total


def run(
    pipe: Pipeline, params: SlotArrays, stats: SlotArrays, microbatches: Microbatch
) -> tuple[jax.Array, SlotArrays, SlotArrays]:
    """Do a table's forward and backward passes.

    Args:
        pipe: stages whose last returns a scalar.
        params: what this device holds, dims over fsdp whole.
        stats: its running statistics.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        The sum of what the last stage returned over microbatches, zero on devices
        without it; new statistics; gradients of the sum with respect to `params`.
    """
    after = ScheduleRunner(pipe, params, stats, microbatches, graded=True).run()
    return after.total, after.stats, after.grads


class ScheduleRunner:
    """One run of a table inside a `shard_map`."""

    def __init__(
        self,
        pipe: Pipeline,
        params: SlotArrays,
        stats: SlotArrays,
        parts: Microbatch,
        *,
        graded: bool,
    ) -> None:
        self.pipe, self.params, self.microbatches = pipe, params, parts
        self.stats, self.with_gradients = stats, graded
        found = trace_stages(pipe, params, stats, parts, with_gradients=graded)
        self.traces = tuple(found)
        self.input_lengths = flat_messages.max_lengths(
            trace.input_spec for trace in self.traces[1:]
        )
        self.cotangent_lengths = flat_messages.max_lengths(
            trace.cotangent_spec for trace in self.traces[1:]
        )
        self.residual_lengths = flat_messages.max_lengths(
            trace.residual_spec for trace in self.traces
        )

    def run(self) -> LoopCarry:
        """Do every beat."""
        rows = {name: jnp.asarray(x) for name, x in self.columns().items()}
        return lax.scan(self._scan_body, self.initial_carry(), rows)[0]

    def columns(self) -> dict[str, np.ndarray]:
        """Return all numbers of the tables by name."""
        return self.pipe.schedule_arrays.columns()

    def weights(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the parameters that a work reads, dims over fsdp whole."""
        return self.params

    def gradient_sums(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the sums that a backward pass adds gradients to."""
        held: SlotArrays = carry.grads
        return held

    def add_output(self, row: ScheduleRow, carry: LoopCarry, out: Any) -> Any:
        """Return the total with what the last stage returned."""
        return jax.tree.map(jnp.add, carry.total, out)

    def initial_carry(self) -> LoopCarry:
        """Return what there is before the first beat."""
        inputs, gradients, kept = self.pipe.schedule_arrays.rows
        hops = range(len(self.pipe.schedule_arrays.hops))
        return LoopCarry(
            total=jax.tree.map(_zeros, self.traces[-1].output_spec.abstract_tree),
            grads=jax.tree.map(jnp.zeros_like, self.params)
            if self.with_gradients
            else None,
            stats=self.stats,
            inputs=flat_messages.zero_buffers(self.input_lengths, inputs),
            gradients=flat_messages.zero_buffers(self.cotangent_lengths, gradients),
            kept=flat_messages.zero_buffers(self.residual_lengths, kept),
            up=tuple(flat_messages.zero_buffers(self.input_lengths) for _ in hops),
            down=tuple(
                flat_messages.zero_buffers(self.cotangent_lengths) for _ in hops
            ),
        )

    def _scan_body(
        self, carry: LoopCarry, rows: Mapping[str, jax.Array]
    ) -> tuple[LoopCarry, None]:
        me = lax.axis_index(PIPE_AXIS)
        row = {name: x[me] for name, x in rows.items()}
        return self._exchange(self.run_superstep(row, carry)), None

    def run_superstep(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Do what a device does in a beat."""
        for way in ("comes", "returns") if self.with_gradients else ("comes",):
            for hop in range(len(self.pipe.schedule_arrays.hops)):
                arrives = partial(RECEIVERS[way], hop)
                carry = device_cond(row[way][hop] >= 0, arrives, row, carry)
        carry = self._run_kind("forward", self._forward, row, carry)
        if not self.with_gradients:
            return carry
        carry = self._run_kind("backward", self._backward, row, carry)
        carry = self.finish_gradients(row, carry)
        mine = select_kind(row, "backward")
        return device_cond(mine["stage"] != NO_ENTRY, release_residuals, mine, carry)

    def finish_gradients(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Return the carry with its sums whole, before what made them is let go."""
        return carry

    def _run_kind(
        self,
        kind: str,
        work: Callable[..., LoopCarry],
        row: ScheduleRow,
        carry: LoopCarry,
    ) -> LoopCarry:
        """Do the work of a kind of that stage, if any, whose turn it is."""
        mine = select_kind(row, kind)
        for trace in self.traces:
            number = trace.stage.index
            with jax.named_scope(f"stage{number}.{kind}"):
                body = partial(work, trace)
                carry = device_cond(mine["stage"] == number, body, mine, carry)
        return carry

    def _exchange(self, carry: LoopCarry) -> LoopCarry:
        """Hand on what was made in a beat."""
        ups = self.pipe.schedule_arrays.hops
        downs = [[(b, a) for a, b in hop] for hop in ups]
        with jax.named_scope("between_stages"):
            with jax.named_scope("activations"):
                up = tuple(_ppermute(carry.up[0], hop) for hop in ups)
            with jax.named_scope("gradients"):
                down = tuple(_ppermute(carry.down[0], hop) for hop in downs)
        return replace(carry, up=up, down=down)

    def _forward(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        stage, last = trace.stage, trace is self.traces[-1]
        run, leaves, slopes = self._bind_stage(trace, row, carry)
        if self.with_gradients:
            _, back, (out, stats) = jax.vjp(run, leaves, slopes, has_aux=True)
            kept = trace.residual_spec.write(
                carry.kept, vjp_residuals(back), row["kept"]
            )
            carry = replace(carry, kept=kept)
            new = self.pipe.stat_slots.put(carry.stats, stage.device, stats)
            carry = replace(carry, stats=new)
        else:
            _, (out, _) = run(leaves, slopes)
        if last:
            return replace(carry, total=self.add_output(row, carry, out))
        return replace(
            carry, up=(trace.output_spec.write(carry.up[0], out), *carry.up[1:])
        )

    def _backward(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        _, leaves, slopes = self._bind_stage(trace, row, carry)
        kept = trace.residual_spec.read(carry.kept, row["kept"])
        back = bind_vjp_residuals(trace.vjp_fn, kept, leaves, slopes)
        grads, down = back(self._output_cotangent(trace, row, carry))
        if trace.stage.index:
            made = trace.cotangent_spec.write(carry.down[0], down)
            carry = replace(carry, down=(made, *carry.down[1:]))
        before, device = self.gradient_sums(row, carry), trace.stage.device
        added = self.pipe.param_slots.add(before, device, grads, row["turn"])
        return replace(carry, grads=added)

    def _output_cotangent(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> Any:
        """Return the gradient of what a stage returned, as its neighbour sent it."""
        if trace is self.traces[-1]:
            return tie_to_iteration(
                row, jax.tree.map(_ones, trace.output_spec.abstract_tree)
            )
        form = self.traces[trace.stage.index + 1].cotangent_spec
        came = form.read(carry.gradients, row["gradient"])
        return tie_to_iteration(row, came)

    def _bind_stage(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> tuple[Any, Any, Any]:
        """Return a stage as a function, and what it is called on."""
        stage, pipe = trace.stage, self.pipe
        part = {key: x[row["micro"]] for key, x in self.microbatches.items()}
        carried = trace.input_spec.read(carry.inputs, row["input"])
        part, carried = tie_to_iteration(row, (part, carried))
        slopes, others = partition_floats(carried)
        run = pipe.stage_function(
            stage, others, pipe.stage_stats(stage, carry.stats), part
        )
        return run, pipe.stage_params(stage, self.weights(row, carry)), slopes


def _ppermute(vectors: FlatBuffers, pairs: Sequence[tuple[int, int]]) -> FlatBuffers:
    """Hand vectors to neighbours along the pipe axis."""
    return {dtype: lax.ppermute(x, PIPE_AXIS, pairs) for dtype, x in vectors.items()}


def _zeros(x: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(x.shape, x.dtype)


def _ones(x: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.ones(x.shape, x.dtype)
