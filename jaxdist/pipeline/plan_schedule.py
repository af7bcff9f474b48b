"""The pipeline schedule of a plan's step, and how often its devices do what."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.lockstep import lockstep_supersteps
from jaxdist.pipeline.pipedream_schedule import pipedream, pipedream_2bw
from jaxdist.pipeline.schedule_base import PipelineSchedule
from jaxdist.pipeline.stage_placement import stage_placement
from jaxdist.pipeline.sync_schedule import (
    SyncSchedule,
    forward_only,
    make_sync_schedule,
)
from jaxdist.pipeline.work_item import Supersteps, forward

_PLAN_KEYS: Final = (
    ("microbatches=", "optim.accumulate="),
    ("replicas=", "plan.pipe.replicas="),
    ("stashing=", "plan.pipe.weight_stashing="),
    ("vertical_sync=", "plan.pipe.vertical_sync="),
    ("group=", "plan.pipe.microbatches_per_update="),
    ("chunks=", "plan.pipe.chunks="),
    ("schedule=", "plan.pipe.schedule="),
    ("devices=", "plan.mesh.pipe="),
    ("stages=", "plan.mesh.pipe="),
)
"""What schedules call their parameters, and the settings of a plan."""


@dataclass(frozen=True, kw_only=True)
class DeviceWorkCounts:
    """How much work a device along the pipe axis does in a step."""

    microbatches: int
    """Microbatches that its stages work on."""
    updates: int
    """Times that its weights move."""


def sync_plan_schedule(plan: Plan, microbatches: int) -> SyncSchedule:
    """Return the synchronous schedule of a step: all microbatches see the same weights.

    Raises:
        BadInput: a schedule that does not go with these numbers.
    """
    pipe = plan.pipe
    with _plan_key_errors():
        return make_sync_schedule(
            pipe.schedule, plan.mesh.pipe, microbatches, pipe.chunks
        )


def async_plan_schedule(plan: Plan, microbatches: int) -> AsyncSchedule:
    """Return the asynchronous schedule of a step: microbatches move the weights.

    Raises:
        BadInput: a schedule that does not go with these numbers.
    """
    pipe, stages = plan.pipe, plan.stages
    with _plan_key_errors():
        if pipe.schedule == "pipedream-2bw":
            return pipedream_2bw(
                stages, microbatches, pipe.microbatches_per_update or stages
            )
        return pipedream(
            pipe.replicas or (1,) * stages,
            microbatches,
            stashing=pipe.weight_stashing,
            vertical_sync=pipe.vertical_sync,
        )


def plan_schedule(plan: Plan, microbatches: int) -> PipelineSchedule:
    """Return the schedule of a training step.

    Raises:
        BadInput: a schedule that does not go with these numbers.
    """
    found = async_plan_schedule if plan.pipe.flows else sync_plan_schedule
    return found(plan, microbatches)


def evaluation_supersteps(plan: Plan, microbatches: int) -> Supersteps:
    """Return the forward passes of an evaluation."""
    places = stage_placement(plan)
    if not plan.pipe.replicas:
        return forward_only(plan.mesh.pipe, microbatches, plan.pipe.chunks).supersteps
    # Replicated stages share the microbatches, in training and here.
    lists = tuple(
        tuple(
            forward(stage, micro)
            for micro in range(microbatches)
            if places.device_of(stage, micro) == device
        )
        for device in range(places.devices)
        for stage in places.stages_of(device)
    )
    return lockstep_supersteps(lists, plan.stages)


def device_work_counts(plan: Plan, microbatches: int) -> tuple[DeviceWorkCounts, ...]:
    """Return the work of each device along the pipe axis in a training step.

    >>> from jaxdist.core.plan.pipeline import PipelineConfig
    >>> from jaxdist.core.plan import MeshShape
    >>> pipe = PipelineConfig(schedule="pipedream", replicas=(2, 1))
    >>> plan = Plan(mesh=MeshShape(pipe=3), pipe=pipe)
    >>> [t.microbatches for t in device_work_counts(plan, 8)]
    [4, 4, 8]
    """
    # A synchronous step has one update, over all of its microbatches.
    places, rounds = stage_placement(plan), (microbatches,) * plan.stages
    if plan.pipe.flows:
        rounds = async_plan_schedule(plan, microbatches).update_microbatches
    return tuple(
        DeviceWorkCounts(
            microbatches=microbatches // places.replicas_of(device),
            updates=microbatches // rounds[places.stages_of(device)[0]],
        )
        for device in range(places.devices)
    )


def updates_per_step(plan: Plan, microbatches: int) -> int:
    """Return the updates of a training step, of the stage that has most."""
    return max(own.updates for own in device_work_counts(plan, microbatches))


@contextmanager
def _plan_key_errors() -> Iterator[None]:
    """Name the settings of a plan where a schedule refuses its parameters."""

    def with_plan_keys(text: str) -> str:
        for word, setting in _PLAN_KEYS:
            text = text.replace(word, setting)
        return text

    # Schedules know nothing of plans, so their errors name parameters of theirs.
    try:
        yield
    except BadInput as error:
        raise BadInput(
            error.what,
            rule=error.rule,
            values=with_plan_keys(error.values),
            remedy=tuple(map(with_plan_keys, error.remedy)),
        ) from error
