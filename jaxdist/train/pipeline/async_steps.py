"""Asynchronous pipelines: what their layouts communicate, and what they support.

A step begins with all stages empty and weights of one version, and ends so; in between
each stage updates its weights as its rounds end. Narayanan et al. 2019 (SOSP, arXiv
1806.03377) drain the pipeline where they evaluate, too.
"""

import math
from collections.abc import Iterator

import jax
import numpy as np

from jaxdist.core.axes import sub_axis_name
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.partition.ledger import ParameterReads
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.pipeline.plan_schedule import (
    async_plan_schedule,
    device_work_counts,
    stage_placement,
)
from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.train.layout import Layout
from jaxdist.train.pipeline import sync_gradients
from jaxdist.train.state_layout import SlotStateLayout, StateLayout


def stage_reduction_traffic(layout: Layout, device: int) -> Iterator[PlannedCollective]:
    """Yield the all-reduces among the replicas of a device's stage in a step."""
    plan, micro = layout.plan, layout.task.microbatches
    held = sync_gradients.require_slot_layout(layout)
    if not plan.pipe.flows:
        return
    places, own = stage_placement(plan), device_work_counts(plan, micro)[device]
    replicated = [d for d in range(places.devices) if places.replicas_of(d) > 1]
    rows = []
    if places.replicas_of(device) > 1:
        axes: tuple[str, ...] = (sub_axis_name("pipe", places.replicas_of(device)),)
        for what, slots, times in (
            ("gradients", held.param_slots, own.updates),
            ("statistics", held.stat_slots, 1),
        ):
            # One program for all devices: each sums the longest slots among those that
            # have replicas, and the leaves that several stages share, whole.
            used = zip(slots.slots, slots.used(replicated), strict=True)
            nbytes = sum(n * np.dtype(slot.leaf.dtype).itemsize for slot, n in used)
            for leaf in (slots.leaves[place] for place in slots.shared):
                size = math.prod(leaf.local_shape(plan))
                nbytes += size * np.dtype(leaf.dtype).itemsize
            rows.append((what, times * nbytes, axes))
    if len(set(async_plan_schedule(plan, micro).update_microbatches)) > 1:
        # Stages update at different times, so the optimizer's counts differ: at the end
        # of a step all devices take those of the busiest stage.
        opt = jax.tree.leaves(
            layout.replica_state_shapes.opt,
            is_leaf=lambda node: isinstance(node, SlotArrays),
        )
        counts = [x.dtype.itemsize for x in opt if not isinstance(x, SlotArrays)]
        rows.append(("counts", sum(counts), ("pipe",)))
    for what, payload, axes in rows:
        yield PlannedCollective(
            what=what,
            kind="all-reduce",
            axes=axes,
            payload=payload,
            layer="replicas_of_stages",
        )


def check_async_support(
    plan: Plan, state_layout: StateLayout, parameter_reads: ParameterReads
) -> None:
    """Check that a plan goes with weights that change stage by stage.

    Raises:
        BadInput: parameters sharded over fsdp or shared by stages, or an optimizer that
            needs the whole gradient.
    """
    if not plan.pipe.flows or not isinstance(state_layout, SlotStateLayout):
        return
    # Each refusal says what fails, the rule behind it, the values and a remedy.
    slots = state_layout.param_slots
    shared = [slots.leaves[place].name for place in slots.shared]
    if plan.mesh.fsdp > 1:
        what = "parameters are shared out over fsdp"
        rule = "a device has all numbers of each version of its stage"
        values = f"plan.mesh.fsdp = {plan.mesh.fsdp}"
        devices = plan.mesh.data * plan.mesh.fsdp
        remedy = f"plan.mesh.data={devices} plan.mesh.fsdp=1"
    elif shared:
        what = "stages share a parameter"
        rule = "every parameter moves with one stage"
        values = f"{', '.join(shared)} in several stages"
        remedy = "plan.pipe.cuts= with all its blocks in one stage"
    elif parameter_reads.global_norms:
        what = "the optimizer asks for the gradient of all stages at once"
        rule = "stages move at different times, each along its own gradient"
        values = "optim.clip or optim.skip_nonfinite is not 0"
        remedy = "optim.clip=0 optim.skip_nonfinite=0"
    else:
        return
    raise BadInput(
        f"{what}, which does not go with {plan.pipe.schedule}",
        rule=rule,
        values=f"{values}, plan.pipe.schedule = {plan.pipe.schedule}",
        remedy=(remedy, "plan.pipe.schedule=1f1b"),
    )
