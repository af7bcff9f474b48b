"""Asynchronous execution: stages update their weights while microbatches are under way.

As `jaxdist.pipeline.sync_executor`, with two additions. A device keeps as many versions
of its weights as the schedule needs at once, and each work item reads the one that the
schedule says. At the end of a superstep that ends a round of its stage, the mean of the
round's gradients updates the newest weights; replicas of a stage take the mean
together.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.device_cond import ScheduleRow, device_cond, tie_to_iteration
from jaxdist.pipeline.plan_schedule import replicated_placement
from jaxdist.pipeline.schedule_arrays import NO_ENTRY
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout
from jaxdist.pipeline.stages import Microbatch, Pipeline
from jaxdist.pipeline.sync_executor import PIPE_AXIS, LoopCarry, ScheduleRunner

UPDATE_SCOPE: Final = "stages.update"
"""Named scope of weight updates in the compiled program."""

UpdateFn = Callable[[SlotArrays, Any, SlotArrays], tuple[SlotArrays, Any]]
"""`(mean gradients, optimizer state, parameters) -> (parameters, optimizer state)`."""


@partial(
    jax.tree_util.register_dataclass, data_fields=("weights", "opt"), meta_fields=()
)
@dataclass(frozen=True, kw_only=True)
class WeightState:
    """The weights of a device between two supersteps."""

    weights: SlotArrays
    """Ring of versions, [rows, ...] each."""
    opt: Any
    """State of the optimizer, for the newest version."""


@dataclass(frozen=True, kw_only=True)
class VersionArrays:
    """Where each device reads and writes its weights.

    All but `last` are int32 [supersteps, devices]; each superstep has one tick. Version
    v of a stage lies in row v % rows of a ring; it is overwritten when no later work
    reads it.
    """

    read: np.ndarray
    """Row that its work item reads."""
    newest: np.ndarray
    """Row of the newest weights."""
    update: np.ndarray
    """Row that new weights go to at the tick's end; `NO_ENTRY` where there are none."""
    begins: np.ndarray
    """1 where its work is the first backward pass of a round that it does; else 0."""
    last: np.ndarray
    """Row of the newest weights at the end, int32 [devices]."""
    rows: int
    """Rows of the ring."""

    def columns(self) -> dict[str, np.ndarray]:
        """Return the arrays with an entry for each superstep, by name."""
        names = ("read", "newest", "update", "begins")
        return {name: getattr(self, name) for name in names}


def version_arrays(schedule: AsyncSchedule) -> VersionArrays:
    """Write the weight versions that devices read and write as arrays.

    >>> from jaxdist.pipeline.pipedream_schedule import pipedream
    >>> version_arrays(pipedream((1, 1, 1), 6)).rows
    3
    """
    placement = replicated_placement(schedule.replicas)
    rows = max(map(schedule.live_versions, range(schedule.stages)))
    shape = schedule.length, schedule.devices
    read, newest, update = (np.full(shape, NO_ENTRY, np.int32) for _ in range(3))
    begins, last = np.zeros(shape, np.int32), np.zeros(schedule.devices, np.int32)
    for device in range(schedule.devices):
        (stage,) = placement.stages_of(device)
        # With several microbatches a round, a device may do none, one or more of a
        # round.
        begun = -1
        for tick, row in enumerate(schedule.ticks):
            now, work = schedule.version_at(stage, tick), row[device]
            newest[tick, device] = now % rows
            # A version that is new from the next tick on is made at the end of this
            # one.
            if schedule.version_at(stage, tick + 1) > now:
                update[tick, device] = (now + 1) % rows
            if work is None:
                continue
            versions = (
                schedule.forward_versions
                if work.kind == "forward"
                else schedule.backward_versions
            )
            read[tick, device] = versions[stage][work.microbatch] % rows
            if work.kind == "backward":
                round_ = work.microbatch // schedule.update_microbatches[stage]
                begins[tick, device], begun = round_ > begun, round_
        last[device] = schedule.version_at(stage, schedule.length) % rows
    return VersionArrays(
        read=read, newest=newest, update=update, begins=begins, last=last, rows=rows
    )


@dataclass(frozen=True, kw_only=True)
class AsyncPipeline:
    """Stages, their asynchronous schedule and their update."""

    pipe: Pipeline
    """The stages; its arrays are those of `stream`."""
    stream: AsyncSchedule
    """Who does what when, on which weights."""
    move: UpdateFn
    """Updates the weights of this device's stage."""

    def sum_replicas(
        self, slots: SlotLayout, arrays: SlotArrays, row: ScheduleRow | None = None
    ) -> SlotArrays:
        """Sum arrays over the replicas of each stage.

        Args:
            slots: how leaves lie.
            arrays: a device's part of each slot.
            row: of the enclosing `device_cond`, if any.
        """
        groups = [*map(list, replicated_placement(self.stream.replicas).groups)]

        def add(own: list[jax.Array]) -> list[jax.Array]:
            mine = own if row is None else tie_to_iteration(row, own)
            found: list[jax.Array] = lax.psum(mine, PIPE_AXIS, axis_index_groups=groups)
            return found

        # Only as far as replicated stages use the slots: one without replicas may be
        # much larger, and its values stay where they are.
        replicated = [d for group in groups if len(group) > 1 for d in group]
        return slots.of_fronts(arrays, slots.used(replicated), add)


def run(
    pipeline: AsyncPipeline,
    params: SlotArrays,
    opt_state: Any,
    stats: SlotArrays,
    microbatches: Microbatch,
) -> tuple[jax.Array, SlotArrays, SlotArrays, Any]:
    """Run a schedule from its first forward pass to its last update.

    Args:
        pipeline: stages whose last returns a scalar, the loss of a microbatch.
        params: of this device.
        opt_state: the optimizer's state for them.
        stats: running statistics.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        The results of the last stage [M], zero for microbatches of other devices; new
        statistics, the mean of those of replicas; new parameters; the optimizer's
        state, with counts of the stage that has most updates.
    """
    runner = _AsyncRunner(pipeline, params, opt_state, stats, microbatches)
    after = runner.run()
    # Stages end in different rows of their rings.
    last = _local_value(runner.versions.last)
    new = jax.tree.map(lambda x: x[last], after.moving.weights)

    stats, replicas = after.stats, pipeline.stream.replicas
    if max(replicas) > 1:
        count = _local_value(np.repeat(replicas, replicas))
        with jax.named_scope("statistics_of_replicas"):
            total = pipeline.sum_replicas(pipeline.pipe.stat_slots, stats)
            stats = jax.tree.map(lambda x: x / count.astype(x.dtype), total)

    # Counts of updates are one number for all devices, so they have to agree.
    opt = after.moving.opt
    if len(set(pipeline.stream.update_microbatches)) > 1:
        with jax.named_scope("counts_of_updates"):
            opt = jax.tree.map(
                lambda x: x if isinstance(x, SlotArrays) else lax.pmax(x, PIPE_AXIS),
                opt,
                is_leaf=lambda node: isinstance(node, SlotArrays),
            )
    return after.total, stats, new, opt


class _AsyncRunner(ScheduleRunner):
    """One run of an asynchronous schedule inside a `shard_map`."""

    def __init__(
        self,
        flow: AsyncPipeline,
        params: SlotArrays,
        opt: Any,
        stats: SlotArrays,
        parts: Microbatch,
    ) -> None:
        super().__init__(flow.pipe, params, stats, parts, graded=True)
        self.flow, self.opt = flow, opt
        self.versions = version_arrays(flow.stream)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the arrays of the schedule, and of weight versions, by name."""
        return {**super().columns(), **self.versions.columns()}

    def initial_carry(self) -> LoopCarry:
        """Return the carry before the first superstep: version 0 in row 0."""
        rows = self.versions.rows
        ring = jax.tree.map(
            lambda x: jnp.zeros((rows, *x.shape), x.dtype).at[0].set(x), self.params
        )
        # Losses are kept by microbatch, since their weights differ.
        carry = super().initial_carry()
        return replace(
            carry,
            total=jnp.zeros(self.flow.stream.microbatches, carry.total.dtype),
            moving=WeightState(weights=ring, opt=self.opt),
        )

    def weights(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the version that a work item reads."""
        held: SlotArrays = jax.tree.map(lambda x: x[row["read"]], carry.moving.weights)
        return held

    def gradient_sums(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the sums of a round before a backward pass, zero before its first."""
        # Cleared where a round begins, not where one ends: sums that are read and
        # cleared in one superstep would be copied.
        held: SlotArrays = jax.tree.map(
            lambda x: jnp.where(row["begins"] > 0, jnp.zeros_like(x), x), carry.grads
        )
        return held

    def add_output(self, row: ScheduleRow, carry: LoopCarry, out: Any) -> Any:
        """Return the losses with that of one more microbatch."""
        return carry.total.at[row["micro"]].add(out)

    def run_superstep(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Do the work of a device, and update its weights where a round ends."""
        carry = super().run_superstep(row, carry)
        with jax.named_scope(UPDATE_SCOPE):
            return device_cond(row["update"] >= 0, self._update, row, carry)

    def finish_gradients(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Return the carry with a round summed over replicas, where it ends."""
        # In a loop of its own, apart from the update, so that sums are written in
        # place: XLA's CPU backend fuses a write to the front of an array with what
        # reads it, and then passes over the whole array under masks, as in
        # `add_to_prefix`. After the release of residuals, which reads the sums, they
        # would be copied in every superstep.
        if max(self.flow.stream.replicas) == 1:
            return carry
        with jax.named_scope(UPDATE_SCOPE):
            return device_cond(row["update"] >= 0, self._sum_replicas, row, carry)

    def _sum_replicas(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        slots = self.flow.pipe.param_slots
        return replace(carry, grads=self.flow.sum_replicas(slots, carry.grads, row))

    def _update(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        moving, stream = carry.moving, self.flow.stream
        newest = jax.tree.map(lambda x: x[row["newest"]], moving.weights)
        # Tied to the iteration: the mean would else be taken in every superstep.
        mean = tie_to_iteration(row, carry.grads)
        if max(stream.update_microbatches) > 1:
            size = _local_value(np.repeat(stream.update_microbatches, stream.replicas))
            mean = jax.tree.map(lambda x: x / size.astype(x.dtype), mean)
        new, opt = self.flow.move(mean, moving.opt, newest)
        # A row in place: the other versions are still read by microbatches in flight.
        ring = jax.tree.map(
            lambda x, y: x.at[row["update"]].set(y), moving.weights, new
        )
        return replace(carry, moving=WeightState(weights=ring, opt=opt))


def _local_value(numbers: np.ndarray) -> jax.Array:
    """Return this device's entry of an array along the pipe axis."""
    return jnp.asarray(numbers)[lax.axis_index(PIPE_AXIS)]
