"""Flow: stages whose weights move while later microbatches are under way.

As `jaxdist.pipeline.sync_executor`, with two things more. A device keeps as many
versions of its weights as the table holds at once, and its work reads the one that the
table says.
At the end of a beat that ends a round of its stage, the mean of the round's gradients
moves the newest weights; replicas of a stage take the mean together.
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
from jaxdist.pipeline.stage import Microbatch, Pipeline
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout
from jaxdist.pipeline.stage_placement import replicated_placement
from jaxdist.pipeline.sync_executor import PIPE_AXIS, LoopCarry, ScheduleRunner
from jaxdist.pipeline.weight_versions import VersionArrays, version_arrays

UPDATE_SCOPE: Final = "stages.update"
"""Scope of what moves weights, as a compiled program has it."""

UpdateFn = Callable[[SlotArrays, Any, SlotArrays], tuple[SlotArrays, Any]]
"""From mean gradients, an optimizer's state and parameters to the next of both."""


@partial(
    jax.tree_util.register_dataclass, data_fields=("weights", "opt"), meta_fields=()
)
@dataclass(frozen=True, kw_only=True)
class WeightState:
    """What a device has of its weights between two beats."""

    weights: SlotArrays
    """Ring of versions, [rows, ...] each."""
    opt: Any
    """State of the optimizer, of the newest."""


@dataclass(frozen=True, kw_only=True)
class AsyncPipeline:
    """Stages, a stream that moves them, and how their weights move."""

    pipe: Pipeline
    """The stages; its tables are those of the stream."""
    stream: AsyncSchedule
    """Who does what when, on which weights."""
    move: UpdateFn
    """Moves the weights of this device's stage."""

    @property
    def groups(self) -> list[list[int]]:
        """Devices along the pipe axis that have the same stage."""
        return [
            list(group) for group in replicated_placement(self.stream.replicas).groups
        ]

    def sum_replicas(
        self, slots: SlotLayout, arrays: SlotArrays, row: ScheduleRow | None = None
    ) -> SlotArrays:
        """Sum what replicas of a stage have, as far as their stages go.

        A stage that has no replica may be much larger; its numbers stay where they are.

        Args:
            slots: how leaves lie.
            arrays: numbers in slots.
            row: of the turn whose sum it is, where it is made `device_cond`.
        """
        devices = [d for group in self.groups if len(group) > 1 for d in group]

        def add(own: list[jax.Array]) -> list[jax.Array]:
            mine = own if row is None else tie_to_iteration(row, own)
            found: list[jax.Array] = lax.psum(
                mine, PIPE_AXIS, axis_index_groups=self.groups
            )
            return found

        return slots.of_fronts(arrays, slots.used(devices), add)


def run(
    pipeline: AsyncPipeline,
    params: SlotArrays,
    opt_state: Any,
    stats: SlotArrays,
    microbatches: Microbatch,
) -> tuple[jax.Array, SlotArrays, SlotArrays, Any]:
    """Do all of a stream, from its first forward pass to its last update.

    Args:
        pipeline: stages whose last returns a scalar, the loss of a microbatch.
        params: what this device holds.
        opt_state: the optimizer's state for it.
        stats: running statistics.
        microbatches: microbatches, [M, b, ...]; every stage has all.

    Returns:
        What the last stage returned [M], zero on devices that did not do it; new
        statistics, the mean of those of replicas; new parameters; the optimizer's
        state, with counts of the stage that has moved most often.
    """
    runner = _AsyncRunner(pipeline, params, opt_state, stats, microbatches)
    after = runner.run()
    last = _local_value(runner.versions.last)
    new = jax.tree.map(lambda x: x[last], after.moving.weights)
    return (
        after.total,
        _replica_mean(pipeline, after.stats),
        new,
        _sync_counts(pipeline, after.moving.opt),
    )


class _AsyncRunner(ScheduleRunner):
    """One run of a stream inside a `shard_map`."""

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
        self.versions: VersionArrays = version_arrays(flow.stream)

    def columns(self) -> dict[str, np.ndarray]:
        """Return all numbers of the tables by name."""
        return {**super().columns(), **self.versions.columns()}

    def initial_carry(self) -> LoopCarry:
        """Return what there is before the first beat: version 0 in row 0."""
        rows = self.versions.rows
        ring = jax.tree.map(
            lambda x: jnp.zeros((rows, *x.shape), x.dtype).at[0].set(x), self.params
        )
        carry = super().initial_carry()
        return replace(
            carry,
            total=jnp.zeros(self.flow.stream.microbatches, carry.total.dtype),
            moving=WeightState(weights=ring, opt=self.opt),
        )

    def weights(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return the version that a work reads."""
        held: SlotArrays = jax.tree.map(lambda x: x[row["read"]], carry.moving.weights)
        return held

    def gradient_sums(self, row: ScheduleRow, carry: LoopCarry) -> SlotArrays:
        """Return what the round has summed before a backward pass.

        Who begins a round clears the sums, and not who ends one: sums that are read
        and cleared in one turn would be copied.
        """
        held: SlotArrays = jax.tree.map(
            lambda x: jnp.where(row["begins"] > 0, jnp.zeros_like(x), x), carry.grads
        )
        return held

    def add_output(self, row: ScheduleRow, carry: LoopCarry, out: Any) -> Any:
        """Return the losses with one more."""
        return carry.total.at[row["micro"]].add(out)

    def run_superstep(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Do a device's work, and move its weights where a round is done."""
        carry = super().run_superstep(row, carry)
        with jax.named_scope(UPDATE_SCOPE):
            return device_cond(row["update"] >= 0, self._update, row, carry)

    def finish_gradients(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Return the carry with a round summed over replicas, where it is done.

        In a loop of its own, and so written in place: XLA's CPU backend fuses with an
        update what is written to the front of an array, and then it passes over the
        whole array under masks: see `slots`. Behind what lets go and reads the sums,
        they would be copied in every beat.
        """
        if max(self.flow.stream.replicas) == 1:
            return carry
        with jax.named_scope(UPDATE_SCOPE):
            return device_cond(row["update"] >= 0, self._sum_replicas, row, carry)

    def _sum_replicas(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        """Sum a round over replicas."""
        slots = self.flow.pipe.param_slots
        return replace(carry, grads=self.flow.sum_replicas(slots, carry.grads, row))

    def _update(self, row: ScheduleRow, carry: LoopCarry) -> LoopCarry:
        moving = carry.moving
        newest = jax.tree.map(lambda x: x[row["newest"]], moving.weights)
        # In turn: the mean would else be taken in every beat.
        mean = self._of_the_round(tie_to_iteration(row, carry.grads))
        new, opt = self.flow.move(mean, moving.opt, newest)
        ring = jax.tree.map(
            lambda x, y: x.at[row["update"]].set(y), moving.weights, new
        )
        return replace(carry, moving=WeightState(weights=ring, opt=opt))

    def _of_the_round(self, grads: SlotArrays) -> SlotArrays:
        """Return the mean over a round of its sum."""
        stream = self.flow.stream
        if max(stream.update_microbatches) == 1:
            return grads
        sizes = zip(stream.update_microbatches, stream.replicas, strict=True)
        size = _local_value(np.array([n for n, count in sizes for _ in range(count)]))
        mean: SlotArrays = jax.tree.map(lambda x: x / size.astype(x.dtype), grads)
        return mean


def _local_value(numbers: np.ndarray) -> jax.Array:
    """Return this device's of some numbers, one for each along the pipe axis."""
    return jnp.asarray(numbers)[lax.axis_index(PIPE_AXIS)]


def _replica_mean(flow: AsyncPipeline, stats: SlotArrays) -> SlotArrays:
    """Return the mean of the statistics of replicas."""
    replicas = flow.stream.replicas
    if max(replicas) == 1:
        return stats
    count = _local_value(np.repeat(replicas, replicas))
    with jax.named_scope("statistics_of_replicas"):
        total = flow.sum_replicas(flow.pipe.stat_slots, stats)
        mean: SlotArrays = jax.tree.map(lambda x: x / count.astype(x.dtype), total)
        return mean


def _sync_counts(flow: AsyncPipeline, opt: Any) -> Any:
    """Return an optimizer's state whose counts are those of the busiest stage."""
    if len(set(flow.stream.update_microbatches)) == 1:
        return opt

    def is_held(node: Any) -> bool:
        return isinstance(node, SlotArrays)

    with jax.named_scope("counts_of_updates"):
        return jax.tree.map(
            lambda x: x if is_held(x) else lax.pmax(x, PIPE_AXIS), opt, is_leaf=is_held
        )
