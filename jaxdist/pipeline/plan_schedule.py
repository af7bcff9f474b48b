"""The pipeline schedule of a plan's step, and where its stages are placed.

Stage placement: the devices along the pipe axis that have each stage.

Without replicas stage k of a plan is on device k % p. With replicas a stage has
consecutive devices of its own, and microbatch m runs on the (m % R)-th of its R.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.pipeline.async_schedule import AsyncSchedule
from jaxdist.pipeline.pipedream_schedule import pipedream, pipedream_2bw
from jaxdist.pipeline.schedule_base import (
    PipelineSchedule,
    Supersteps,
    forward,
    lockstep_supersteps,
)
from jaxdist.pipeline.sync_schedule import (
    SyncSchedule,
    forward_only,
    make_sync_schedule,
)

PermutePairs = tuple[tuple[int, int], ...]
"""(from, to): no device occurs twice on either side."""


@dataclass(frozen=True, kw_only=True)
class StagePlacement:
    """The devices of every stage."""

    stage_devices: tuple[tuple[int, ...], ...]
    """Devices of each stage."""

    @property
    def stages(self) -> int:
        """Stages in all."""
        return len(self.stage_devices)

    @property
    def devices(self) -> int:
        """Devices along the axis."""
        return 1 + max(max(devices) for devices in self.stage_devices)

    @property
    def replicas(self) -> tuple[int, ...]:
        """How many devices each stage has."""
        return tuple(map(len, self.stage_devices))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Devices that have the same stages."""
        return tuple(sorted(set(self.stage_devices)))

    def device_of(self, stage: int, micro: int = 0) -> int:
        """Return the device that runs a microbatch on a stage."""
        own = self.stage_devices[stage]
        return own[micro % len(own)]

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the stages that a device has."""
        pairs = enumerate(self.stage_devices)
        return tuple(stage for stage, devices in pairs if device in devices)

    def replicas_of(self, device: int) -> int:
        """Return how many devices share a device's stages, itself included."""
        return len(self.stage_devices[self.stages_of(device)[0]])

    def send_permutations(self) -> tuple[PermutePairs, ...]:
        """Return permutations in which every stage reaches the one after it.

        >>> StagePlacement(stage_devices=((0,), (1,), (2,))).send_permutations()
        (((0, 1), (1, 2)),)
        >>> StagePlacement(stage_devices=((0, 1), (2,), (3,))).send_permutations()
        (((0, 2), (2, 3)), ((1, 2),))
        """
        # Microbatch m goes from replica m % a to replica m % b, so all pairs have
        # occurred after a b microbatches.
        pairs = {
            (a[m % len(a)], b[m % len(b)])
            for a, b in itertools.pairwise(self.stage_devices)
            for m in range(len(a) * len(b))
        }
        # In a permutation no device sends or receives twice: each pair goes into the
        # first that it does not conflict with.
        found: list[list[tuple[int, int]]] = []
        for source, target in sorted(pairs):
            for hop in found:
                if not any(source == a or target == b for a, b in hop):
                    hop.append((source, target))
                    break
            else:
                found.append([(source, target)])
        return tuple(map(tuple, found))


def round_robin_placement(stages: int, devices: int) -> StagePlacement:
    """Return the placement of stages that have one device each.

    >>> round_robin_placement(4, 2).stage_devices
    ((0,), (1,), (0,), (1,))
    """
    return StagePlacement(stage_devices=tuple((k % devices,) for k in range(stages)))


def replicated_placement(replicas: Sequence[int]) -> StagePlacement:
    """Return the placement of stages with so many devices each.

    >>> replicated_placement((2, 1)).stage_devices
    ((0, 1), (2,))
    """
    # Replicas are neighbours, so that their sums stay inside a host where they can.
    ends = itertools.accumulate(replicas)
    return StagePlacement(
        stage_devices=tuple(
            tuple(range(end - count, end))
            for end, count in zip(ends, replicas, strict=True)
        )
    )


def stage_placement(plan: Plan) -> StagePlacement:
    """Return the placement of the stages of a plan."""
    if plan.pipe.replicas:
        return replicated_placement(plan.pipe.replicas)
    return round_robin_placement(plan.stages, plan.mesh.pipe)


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
            # By default as few microbatches an update as two versions of the weights
            # allow.
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
            # All replicas of a stage take part in each of its updates.
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
