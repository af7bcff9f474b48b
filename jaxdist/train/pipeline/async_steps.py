"""Flowing: steps of a layout whose weights move while microbatches are under way.

A step is a stream of its own: it begins with all stages empty and weights of one
version, and ends so. In between each stage moves its weights as its rounds end.
Narayanan et al. 2019 (SOSP, arXiv 1806.03377) stop the stream where they evaluate, too.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxdist.core.axes import sub_axis_name
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.partition.ledger import ParameterReads
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline import async_executor
from jaxdist.pipeline.async_executor import AsyncPipeline, UpdateFn
from jaxdist.pipeline.plan_schedule import async_plan_schedule, device_work_counts
from jaxdist.pipeline.stage_parameters import SlotArrays, SlotLayout
from jaxdist.pipeline.stage_placement import stage_placement
from jaxdist.train.layout import Layout
from jaxdist.train.objective import Batch
from jaxdist.train.pipeline import sync_gradients
from jaxdist.train.state import TrainState
from jaxdist.train.state_layout import SlotStateLayout, StateLayout


def run(
    layout: Layout, state: TrainState, batch: Batch, update: UpdateFn
) -> tuple[jax.Array, SlotArrays, SlotArrays, Any]:
    """Let a batch's microbatches move the weights, one after the other.

    Args:
        layout: its schedule flows.
        state: what this device holds.
        batch: this device's samples.
        update: from mean gradients, which lack sums over other axes, to new weights.

    Returns:
        This device's share of each microbatch's loss [M], statistics, parameters and
        the optimizer's state.
    """
    pipe, parts = sync_gradients.make_training_pipeline(layout, state, batch)
    order = async_plan_schedule(layout.plan, layout.task.microbatches)
    whole = AsyncPipeline(pipe=pipe, stream=order, move=update)
    return async_executor.run(whole, state.params, state.opt, state.stats, parts)


def stage_reduction_traffic(layout: Layout, device: int) -> Iterator[PlannedCollective]:
    """Yield what the replicas of a device's stage sum in a training step."""
    plan, hold = layout.plan, sync_gradients.require_slot_layout(layout)
    if not plan.pipe.flows:
        return
    places, own = (
        stage_placement(plan),
        device_work_counts(plan, layout.task.microbatches)[device],
    )
    axes = (sub_axis_name("pipe", places.replicas_of(device)),)
    among = [d for d in range(places.devices) if places.replicas_of(d) > 1]
    sums = {
        "gradients": own.updates * _reduced_bytes(hold.param_slots, among),
        "statistics": _reduced_bytes(hold.stat_slots, among),
    }
    for what, payload in sums.items():
        if places.replicas_of(device) > 1:
            yield _all_reduce_row(what, payload, axes)
    rounds = async_plan_schedule(plan, layout.task.microbatches).update_microbatches
    if len(set(rounds)) > 1:
        nodes = jax.tree.leaves(
            layout.replica_state_shapes.opt, is_leaf=_is_slot_arrays
        )
        counts = [x for x in nodes if not _is_slot_arrays(x)]
        yield _all_reduce_row(
            "counts", sum(x.dtype.itemsize for x in counts), ("pipe",)
        )


def check_async_support(
    plan: Plan, state_layout: StateLayout, parameter_reads: ParameterReads
) -> None:
    """Refuse what does not go with weights that move stage by stage.

    Raises:
        BadInput: parameters shared out over fsdp or over stages, or an optimizer that
            asks for the whole gradient.
    """
    if not plan.pipe.flows or not isinstance(state_layout, SlotStateLayout):
        return
    if plan.mesh.fsdp > 1:
        raise _unsupported_error(
            plan,
            "parameters are shared out over fsdp",
            "a device has all numbers of each version of its stage",
            f"plan.mesh.fsdp = {plan.mesh.fsdp}",
            f"plan.mesh.data={plan.mesh.data * plan.mesh.fsdp} plan.mesh.fsdp=1",
        )
    shared = [
        state_layout.param_slots.leaves[place].name
        for place in state_layout.param_slots.shared
    ]
    if shared:
        raise _unsupported_error(
            plan,
            "stages share a parameter",
            "every parameter moves with one stage",
            f"{', '.join(shared)} in several stages",
            "plan.pipe.cuts= with all its blocks in one stage",
        )
    if parameter_reads.global_norms:
        raise _unsupported_error(
            plan,
            "the optimizer asks for the gradient of all stages at once",
            "stages move at different times, each along its own gradient",
            "optim.clip or optim.skip_nonfinite is not 0",
            "optim.clip=0 optim.skip_nonfinite=0",
        )


def _unsupported_error(
    plan: Plan, what: str, rule: str, values: str, remedy: str
) -> BadInput:
    return BadInput(
        f"{what}, which does not go with {plan.pipe.schedule}",
        rule=rule,
        values=f"{values}, plan.pipe.schedule = {plan.pipe.schedule}",
        remedy=(remedy, "plan.pipe.schedule=1f1b"),
    )


def _reduced_bytes(slots: SlotLayout, devices: Sequence[int]) -> int:
    """Return the bytes of what replicas sum at once."""
    own = zip(slots.slots, slots.used(devices), strict=True)
    whole = [slots.leaves[place] for place in slots.shared]
    return sum(n * np.dtype(slot.leaf.dtype).itemsize for slot, n in own) + sum(
        math.prod(leaf.local_shape(slots.plan)) * np.dtype(leaf.dtype).itemsize
        for leaf in whole
    )


def _all_reduce_row(
    what: str, payload: int, axes: tuple[str, ...]
) -> PlannedCollective:
    return PlannedCollective(
        what=what,
        kind="all-reduce",
        axes=axes,
        payload=payload,
        layer="replicas_of_stages",
    )


def _is_slot_arrays(node: Any) -> bool:
    return isinstance(node, SlotArrays)
