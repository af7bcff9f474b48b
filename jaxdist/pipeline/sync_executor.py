"""Synchronous execution: one program for all stages, a loop over supersteps.

In a superstep a device does what its column of the schedule says: one stage's forward
pass of a microbatch, one's backward pass, the gradients of one's weights where these
have ticks of their own, several of them or nothing. What it computed is permuted along
the pipe axis at the end of the superstep.

Other stages do other work in the same superstep, so nothing in a stage may wait for
devices along the pipe axis; sums and gathers over other axes may.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.pipeline import flat_messages
from jaxdist.pipeline.device_cond import ScheduleRow, device_cond, tie_to_iteration
from jaxdist.pipeline.flat_messages import FlatBuffers
from jaxdist.pipeline.schedule_arrays import NO_ENTRY, select_kind
from jaxdist.pipeline.schedule_base import WorkKind
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.pipeline.stages import (
    Microbatch,
    Pipeline,
    StageTrace,
    partition_floats,
    trace_stages,
    vjp_residuals,
)

PIPE_AXIS = "pipe"


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        *("total", "grads", "stats", "inputs", "gradients", "kept", "weight_kept"),
        *("up", "down", "works", "moving"),
    ),
    meta_fields=(),
)
@dataclass(frozen=True, kw_only=True)
class LoopCarry:
    """What a device holds between two supersteps."""

    total: Any
    """Sum of the results of the last stage."""
    grads: Any
    """Sums of gradients, `SlotArrays`; None without backward passes."""
    stats: SlotArrays
    """Running statistics."""
    inputs: FlatBuffers
    """Ring of activations from the stage before."""
    gradients: FlatBuffers
    """Ring of gradients from the stage after."""
    kept: FlatBuffers
    """Ring of residuals of forward passes."""
    weight_kept: FlatBuffers
    """Ring of weight residuals; no vectors where weights have no ticks of their own."""
    up: tuple[FlatBuffers, ...]
    """Activations that have just arrived, hop by hop; until the exchange, the first
    holds the activations to send.
    """
    down: tuple[FlatBuffers, ...]
    """Gradients that have just arrived, or to send, likewise."""
    works: jax.Array | None = None
    """How many works the device has done; counted where the exchange waits for all."""
    moving: Any = None
    """Weights that change within the loop, and their optimizer; None where none do."""


def run_forward(
    pipe: Pipeline, params: SlotArrays, stats: SlotArrays, microbatches: Microbatch
) -> Any:
    """Run an evaluation: sum the results of the last stage over microbatches.

    Args:
        pipe: its schedule has forward passes alone.
        params: of this device, dims over fsdp whole.
        stats: running statistics of this device, which stay as they are.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        The sums, zero on devices without the last stage.
    """
    return ScheduleRunner(pipe, params, stats, microbatches, graded=False).run().total


def run(
    pipe: Pipeline, params: SlotArrays, stats: SlotArrays, microbatches: Microbatch
) -> tuple[jax.Array, SlotArrays, SlotArrays]:
    """Run the forward and backward passes of a schedule.

    Args:
        pipe: stages whose last returns a scalar.
        params: of this device, dims over fsdp whole.
        stats: running statistics of this device.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        The sum of the last stage's results over microbatches, zero on devices
        without it; new statistics; gradients of the sum with respect to `params`.
    """
    after = ScheduleRunner(pipe, params, stats, microbatches, graded=True).run()
    return after.total, after.stats, after.grads


class ScheduleRunner:
    """One run of a schedule inside a `shard_map`."""

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
        self.traces = tuple(
            trace_stages(pipe, params, stats, parts, with_gradients=graded)
        )
        # The first stage reads the batch, so it receives and sends back nothing.
        inner = self.traces[1:]
        self.input_lengths = flat_messages.max_lengths(t.input_spec for t in inner)
        self.cotangent_lengths = flat_messages.max_lengths(
            t.cotangent_spec for t in inner
        )
        self.residual_lengths = flat_messages.max_lengths(
            t.residual_spec for t in self.traces
        )
        splits = (t.backward_split for t in self.traces)
        self.weight_residual_lengths = flat_messages.max_lengths(
            split.weight_residual_spec for split in splits if split
        )

    def run(self) -> LoopCarry:
        """Run every superstep."""
        # All devices get all columns, and each looks up its own: the tables are small.
        rows = {name: jnp.asarray(x) for name, x in self.columns().items()}
        return lax.scan(self._scan_body, self.initial_carry(), rows)[0]

    @property
    def _has_weight_passes(self) -> bool:
        """Whether gradients of weights are works of their own."""
        return "weights" in self.pipe.schedule_arrays.kinds

    def columns(self) -> dict[str, np.ndarray]:
        """Return the arrays of the schedule by name, [supersteps, devices, ...]."""
        return self.pipe.schedule_arrays.columns()

    def weights(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the parameters that a work item reads, dims over fsdp whole."""
        return self.params

    def gradient_sums(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the sums that a backward pass adds gradients to."""
        held: SlotArrays = carry.grads
        return held

    def add_output(self, row: ScheduleRow, carry: LoopCarry, out: Any) -> Any:
        """Return the total with a result of the last stage."""
        return jax.tree.map(jnp.add, carry.total, out)

    def finish_gradients(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Return the carry with its sums complete, before residuals are released."""
        return carry

    def initial_carry(self) -> LoopCarry:
        """Return the carry before the first superstep."""
        inputs, gradients, kept, weight_kept = self.pipe.schedule_arrays.rows
        hops = range(len(self.pipe.schedule_arrays.hops))
        zeros = partial(
            flat_messages.zero_buffers, max_elements=self.pipe.max_vector_elements
        )
        return LoopCarry(
            total=jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype),
                self.traces[-1].output_spec.abstract_tree,
            ),
            # In the dtype of the parameters, which may be wider than that of a
            # gradient.
            grads=jax.tree.map(jnp.zeros_like, self.params)
            if self.with_gradients
            else None,
            stats=self.stats,
            inputs=zeros(self.input_lengths, inputs),
            gradients=zeros(self.cotangent_lengths, gradients),
            kept=zeros(self.residual_lengths, kept),
            weight_kept=zeros(self.weight_residual_lengths, weight_kept),
            # A buffer for each hop: which of them brings something differs from device
            # to device.
            up=tuple(zeros(self.input_lengths) for _ in hops),
            down=tuple(zeros(self.cotangent_lengths) for _ in hops),
            works=jnp.int32(0) if self.pipe.is_exchange_last else None,
        )

    def _scan_body(
        self, carry: LoopCarry, rows: Mapping[str, jax.Array]
    ) -> tuple[LoopCarry, None]:
        me = lax.axis_index(PIPE_AXIS)
        carry = self.run_superstep({name: x[me] for name, x in rows.items()}, carry)
        carry = _finish_works(carry)
        # The exchange. A `ppermute` has one receiver for each sender, so stages with
        # replicas need several hops; each receiver takes the one that is for it.
        hops = self.pipe.schedule_arrays.hops
        # Every superstep has one, needed or not: a permute that some skip may hang.
        with jax.named_scope("between_stages"):
            with jax.named_scope("activations"):
                up = tuple(_permute(carry.up[0], hop) for hop in hops)
            with jax.named_scope("gradients"):
                down = tuple(
                    _permute(carry.down[0], [(b, a) for a, b in hop]) for hop in hops
                )
        return replace(carry, up=up, down=down), None

    def run_superstep(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Do the work of a device in a superstep."""
        hops = range(len(self.pipe.schedule_arrays.hops))
        for hop in hops:
            # Before the works, which may read what the last exchange has brought.
            receive = partial(_receive_activation, hop)
            carry = device_cond(row["comes"][hop] >= 0, receive, row, carry)
        if not self.with_gradients:
            return self._run_kind("forward", self._forward, row, carry)
        for hop in hops:
            receive = partial(_receive_gradient, hop)
            carry = device_cond(row["returns"][hop] >= 0, receive, row, carry)
        carry = self._run_kind("forward", self._forward, row, carry)
        last: WorkKind = "backward"
        if self._has_weight_passes:
            last = "weights"
            carry = self._run_kind("backward", self._input_gradients, row, carry)
            carry = self._run_kind("weights", self._weight_gradients, row, carry)
        else:
            carry = self._run_kind("backward", self._backward, row, carry)
        carry = self.finish_gradients(row, carry)
        # In a loop of its own, after all readers of the residuals: see `overwrite_row`.
        mine = select_kind(row, last)
        return device_cond(mine["stage"] != NO_ENTRY, _release_residuals, mine, carry)

    def _run_kind(
        self,
        kind: WorkKind,
        work: Callable[..., LoopCarry],
        row: ScheduleRow,
        carry: LoopCarry,
    ) -> LoopCarry:
        """Do the work of a kind, of whichever stage's turn it is."""
        mine = select_kind(row, kind)
        # Every device has the work of all stages in its program, each in a loop of one
        # turn or none.
        for trace in self.traces:
            number = trace.stage.index
            # The scope is how `device_collectives` and traces find the stage of an
            # instruction.
            with jax.named_scope(f"stage{number}.{kind}"):
                body = partial(_do_work, partial(work, trace))
                carry = device_cond(mine["stage"] == number, body, mine, carry)
        return carry

    def _forward(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        stage = trace.stage
        run, leaves, slopes = self._bind_stage(trace, row, carry)
        if self.with_gradients:
            _, back, (out, stats) = jax.vjp(run, leaves, slopes, has_aux=True)
            # `back` itself is dropped: the trace's own, bound to these residuals, is
            # the same.
            kept = trace.residual_spec.write(
                carry.kept, vjp_residuals(back), row["kept"]
            )
            carry = replace(carry, kept=kept)
            new = self.pipe.stat_slots.put(carry.stats, stage.device, stats)
            carry = replace(carry, stats=new)
        else:
            _, (out, _) = run(leaves, slopes)
        if trace is self.traces[-1]:
            return replace(carry, total=self.add_output(row, carry, out))
        sent = trace.output_spec.write(carry.up[0], out)
        return replace(carry, up=(sent, *carry.up[1:]))

    def _backward(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        grads, down = trace.backward(*self._backward_arrays(trace, row, carry))
        carry = self._send_gradients(trace, carry, down)
        return self._add_gradients(trace, row, carry, grads)

    def _input_gradients(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        """Do the first part of a backward pass; stages have them all, or none."""
        split = trace.require_split()
        down, kept = split.input_gradients(*self._backward_arrays(trace, row, carry))
        ring = split.weight_residual_spec.write(
            carry.weight_kept, kept, row["weight_kept"]
        )
        return self._send_gradients(trace, replace(carry, weight_kept=ring), down)

    def _weight_gradients(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> LoopCarry:
        """Do the second part: parameters are those of the first, within a step."""
        split = trace.require_split()
        kept = split.weight_residual_spec.read(carry.weight_kept, row["weight_kept"])
        arrays = self._backward_arrays(trace, row, carry)
        grads = split.weight_gradients(kept, *arrays)
        return self._add_gradients(trace, row, carry, grads)

    def _backward_arrays(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> tuple[Any, Any, Any, Any]:
        """Return residuals, parameters, float inputs and the gradient of outputs."""
        _, leaves, slopes = self._bind_stage(trace, row, carry)
        kept = trace.residual_spec.read(carry.kept, row["kept"])
        # The last stage returns the loss, whose gradient is 1; others get theirs from
        # the stage after.
        if trace is self.traces[-1]:
            cotangent = jax.tree.map(
                lambda x: jnp.ones(x.shape, x.dtype), trace.output_spec.abstract_tree
            )
        else:
            spec = self.traces[trace.stage.index + 1].cotangent_spec
            cotangent = spec.read(carry.gradients, row["gradient"])
        return kept, leaves, slopes, tie_to_iteration(row, cotangent)

    def _send_gradients(
        self, trace: StageTrace, carry: LoopCarry, down: Any
    ) -> LoopCarry:
        if not trace.stage.index:
            return carry
        made = trace.cotangent_spec.write(carry.down[0], down)
        return replace(carry, down=(made, *carry.down[1:]))

    def _add_gradients(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry, grads: Any
    ) -> LoopCarry:
        # Summed in the carry at once: gradients of single microbatches are never kept.
        before, device = self.gradient_sums(row, carry), trace.stage.device
        added = self.pipe.param_slots.add(before, device, grads, row["turn"])
        return replace(carry, grads=added)

    def _bind_stage(
        self, trace: StageTrace, row: ScheduleRow, carry: LoopCarry
    ) -> tuple[Any, Any, Any]:
        """Return a stage as a function, its parameters and its float inputs.

        The backward pass computes the same inputs again: `bind_vjp_residuals` puts them
        where `jax.vjp` kept an argument, so they are not stored twice.
        """
        stage, pipe = trace.stage, self.pipe
        part = {key: x[row["micro"]] for key, x in self.microbatches.items()}
        carried = trace.input_spec.read(carry.inputs, row["input"])
        # Else the compiler would move what does not depend on the iteration out of the
        # loop, and do the work of every stage in every superstep.
        part, carried = tie_to_iteration(row, (part, carried))
        slopes, others = partition_floats(carried)
        run = pipe.stage_function(
            stage, others, pipe.stage_stats(stage, carry.stats), part
        )
        return run, pipe.stage_params(stage, self.weights(row, carry)), slopes


def _do_work(
    work: Callable[[ScheduleRow, LoopCarry], LoopCarry],
    row: ScheduleRow,
    carry: LoopCarry,
) -> LoopCarry:
    carry = work(row, carry)
    return carry if carry.works is None else replace(carry, works=carry.works + 1)


def _finish_works(carry: LoopCarry) -> LoopCarry:
    """Return the carry, with nothing to send before all works are done.

    XLA's CPU backend permutes activations before it goes on to backward passes, which
    do not change them. Then a device that goes backward waits for its neighbours'
    forward passes first, and a tick takes as long as all kinds of work in it, one after
    the other: 1F1B of four stages 1.3 times as long.
    """
    if carry.works is None:
        return carry
    # Always so, but that is not to be known before the works are done.
    done = carry.works >= 0
    up, down = jax.tree.map(
        lambda x: jnp.where(done, x, jnp.zeros_like(x)), (carry.up, carry.down)
    )
    return replace(carry, up=up, down=down)


def _permute(sent: FlatBuffers, pairs: Sequence[tuple[int, int]]) -> FlatBuffers:
    """Send vectors along the pipe axis, one after the other."""
    got: FlatBuffers = jax.tree.map(lambda x: lax.ppermute(x, PIPE_AXIS, pairs), sent)
    return got


def _receive_activation(hop: int, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
    ring = flat_messages.write_row(carry.inputs, row["comes"][hop], carry.up[hop])
    return replace(carry, inputs=ring)


def _receive_gradient(hop: int, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
    ring = flat_messages.write_row(
        carry.gradients, row["returns"][hop], carry.down[hop]
    )
    return replace(carry, gradients=ring)


def _release_residuals(row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
    ring = carry.weight_kept
    if ring:
        ring = flat_messages.overwrite_row(ring, row["weight_kept"], carry.grads)
    made = carry.grads, carry.down, ring
    kept = flat_messages.overwrite_row(carry.kept, row["kept"], made)
    return replace(carry, kept=kept, weight_kept=ring)
