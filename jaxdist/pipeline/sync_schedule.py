"""A synchronous schedule as a table: who does what in which tick of a step.

One table drives the program that runs it, the count of ticks and bubbles, the count of
inputs that are held, and the drawing. A device does one work a tick; what is sent
behind a beat, of one tick or two, can be used from the next one on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.pipeline import orders, schedule_base
from jaxdist.pipeline.eager import eager_1f1b
from jaxdist.pipeline.lockstep import lockstep_ticks
from jaxdist.pipeline.orders import DeviceOrders
from jaxdist.pipeline.schedule_base import PipelineSchedule
from jaxdist.pipeline.work_item import (
    Supersteps,
    WorkItem,
    WorkKind,
    dependencies,
    exchange_every_tick,
)


@dataclass(frozen=True, kw_only=True)
class SyncSchedule(PipelineSchedule):
    """The ticks of one step, its microbatches all on the same weights."""

    devices: int
    """Devices along the pipe, from 0."""
    chunks: int
    """Stages a device; stage s lies on device s % devices."""

    @property
    def stages(self) -> int:
        """Chunks that the network is cut into."""
        return self.devices * self.chunks

    @property
    def release_kind(self) -> WorkKind | None:
        """Kind of work that lets go of a stage's input; none where nothing is kept."""
        kinds = {work.kind for row in self.ticks for work in row if work}
        present = (kind for kind in ("weights", "backward") if kind in kinds)
        return next(present, None)

    def device_of(self, stage: int) -> int:
        """Return the device that a stage lies on."""
        return stage % self.devices

    def in_flight(self, device: int) -> int:
        """Return how many inputs at most wait on a device for their backward."""
        return self._peak_live_inputs(device, "backward") if self.release_kind else 0

    def live_inputs(self, device: int) -> int:
        """Return how many inputs at most a device holds for `release_kind`."""
        return (
            self._peak_live_inputs(device, self.release_kind)
            if self.release_kind
            else 0
        )

    @property
    def title(self) -> str:
        """What is drawn, in a line."""
        each = f" of {self.chunks} chunks" if self.chunks > 1 else ""
        devices = f"{self.devices} {'device' if each else 'stage'}"
        micros = f"{self.microbatches} microbatch{'es' * (self.microbatches > 1)}"
        return f"{self.name}, {devices}{'s' * (self.devices > 1)}{each}, {micros}"

    def lane(self, device: int) -> str:
        """Name the row of a device."""
        return f"{'device' if self.chunks > 1 else 'stage'} {device}"

    def label(self, work: WorkItem) -> str:
        """Name a work in its row: its microbatch, and its chunk (a, b, ...) if many."""
        letter = chr(ord("a") + work.stage // self.devices) if self.chunks > 1 else ""
        return f"{work.microbatch}{letter}"

    def note(self, device: int) -> str:
        """Say what a device holds."""
        if not self.release_kind:
            return ""
        flying, held = self.in_flight(device), self.live_inputs(device)
        more = f", {held} held" if self.release_kind == "weights" else ""
        return f"{flying} in flight{more}"

    def _peak_live_inputs(self, device: int, until: WorkKind) -> int:
        return schedule_base.peak_live_inputs(
            schedule_base.device_column(self.ticks, device), until
        )


SINGLE_CHUNK_SCHEDULES: Final[Mapping[str, Callable[[int, int], DeviceOrders]]] = (
    MappingProxyType(
        {
            "gpipe": orders.gpipe,
            "1f1b": orders.one_f_one_b,
            "zb-h1": orders.zero_bubble_h1,
        }
    )
)
"""Schedules with one chunk a device."""

FULL_PIPELINE_SCHEDULES: Final = frozenset({"zb-h1"})
"""Of these, those that need as many microbatches as devices."""

INTERLEAVED_SCHEDULES: Final[Mapping[str, Callable[[int, int, int], DeviceOrders]]] = (
    MappingProxyType({"interleaved": orders.interleaved})
)
"""Schedules with two chunks a device or more."""

EAGER_1F1B: Final = "eager-1f1b"
"""The schedule with any number of chunks a device."""

SYNC_SCHEDULES: Final = (*SINGLE_CHUNK_SCHEDULES, *INTERLEAVED_SCHEDULES, EAGER_1F1B)
"""The names of all synchronous schedules."""


def make_sync_schedule(
    name: str, devices: int, microbatches: int, chunks: int = 1
) -> SyncSchedule:
    """Return the table of a schedule.

    Args:
        name: one of `SYNC_SCHEDULES`.
        devices: devices along the pipe, S.
        microbatches: microbatches of a step, M.
        chunks: chunks of the network on each device, v.

    Raises:
        BadInput: there is no such schedule, or not with these numbers.

    >>> made = make_sync_schedule("1f1b", devices=4, microbatches=8)
    >>> made.length, [made.in_flight(device) for device in range(4)]
    (22, [4, 3, 2, 1])
    """
    return _cached_schedule(name, devices, microbatches, chunks)


@lru_cache(maxsize=8)
def _cached_schedule(
    name: str, devices: int, microbatches: int, chunks: int
) -> SyncSchedule:
    """Make a table: every device of a step asks for the same."""
    _check_positive(devices, microbatches, chunks)
    if name in SINGLE_CHUNK_SCHEDULES:
        _check_single_chunk(name, chunks)
        _check_enough_microbatches(name, devices, microbatches)
        beats = _lockstep_supersteps(
            SINGLE_CHUNK_SCHEDULES[name](devices, microbatches), chunks
        )
    elif name in INTERLEAVED_SCHEDULES:
        _check_several_chunks(name, chunks)
        _check_microbatch_multiple(name, devices, microbatches)
        beats = _lockstep_supersteps(
            INTERLEAVED_SCHEDULES[name](devices, microbatches, chunks), chunks
        )
    elif name == EAGER_1F1B:
        if chunks > 1:
            _check_microbatch_multiple(f"{name} with chunks", devices, microbatches)
        beats = eager_1f1b(devices, microbatches, chunks)
    else:
        raise _unknown_schedule(name)
    return _schedule_of(name, beats, microbatches, chunks)


def forward_only(devices: int, microbatches: int, chunks: int = 1) -> SyncSchedule:
    """Return the table of an evaluation: forwards alone.

    Raises:
        BadInput: a number below 1.

    >>> forward_only(devices=4, microbatches=8).length
    11
    """
    _check_positive(devices, microbatches, chunks)
    lists = orders.forward_orders(devices, microbatches, chunks)
    return _schedule_of(
        "forward", _lockstep_supersteps(lists, chunks), microbatches, chunks
    )


def _lockstep_supersteps(lists: DeviceOrders, chunks: int) -> Supersteps:
    stages = len(lists) * chunks
    return exchange_every_tick(
        lockstep_ticks(lists, lambda work: dependencies(work, stages))
    )


def _schedule_of(
    name: str, beats: Supersteps, microbatches: int, chunks: int
) -> SyncSchedule:
    return SyncSchedule(
        name=name,
        devices=len(beats[0][0]),
        chunks=chunks,
        microbatches=microbatches,
        supersteps=beats,
    )


def _check_positive(devices: int, microbatches: int, chunks: int) -> None:
    given = {"devices": devices, "microbatches": microbatches, "chunks": chunks}
    wrong = {key: value for key, value in given.items() if value < 1}
    if wrong:
        raise BadInput(
            "a schedule without work",
            rule="devices, microbatches and chunks are at least 1",
            values=", ".join(f"{key}={value}" for key, value in wrong.items()),
            remedy=" ".join(f"{key}=1" for key in wrong),
        )


def _check_single_chunk(name: str, chunks: int) -> None:
    if chunks > 1:
        raise BadInput(
            f"the schedule {name} does not take chunks",
            rule=f"{name} has one chunk of the network on each device",
            values=f"chunks={chunks}",
            remedy=(f"schedule=interleaved chunks={chunks}", "or chunks=1"),
        )


def _check_enough_microbatches(name: str, devices: int, microbatches: int) -> None:
    if name in FULL_PIPELINE_SCHEDULES and microbatches < devices:
        raise BadInput(
            f"too few microbatches for {name}",
            rule="microbatches is at least the number of devices: with fewer there are "
            "ticks that no gradient of weights can fill",
            values=f"microbatches={microbatches}, devices={devices}",
            remedy=(f"microbatches={devices}", "or schedule=1f1b"),
        )


def _check_several_chunks(name: str, chunks: int) -> None:
    if chunks == 1:
        raise BadInput(
            f"the schedule {name} has nothing to interleave",
            rule="it has at least 2 chunks of the network on each device",
            values="chunks=1",
            remedy=("chunks=2", "or schedule=1f1b"),
        )


def _check_microbatch_multiple(name: str, devices: int, microbatches: int) -> None:
    if rest := microbatches % devices:
        below, above = microbatches - rest, microbatches - rest + devices
        near = [f"microbatches={n}" for n in (below, above) if n]
        raise BadInput(
            f"the microbatches of {name} do not go round the devices",
            rule="microbatches is a multiple of devices",
            values=f"microbatches={microbatches}, devices={devices}",
            remedy=" or ".join(near),
        )


def _unknown_schedule(name: str) -> BadInput:
    near = did_you_mean(name, SYNC_SCHEDULES)
    return BadInput(
        f"no schedule named {name}",
        rule=f"one of {', '.join(SYNC_SCHEDULES)}",
        values=f"schedule={name}",
        remedy=f"did you mean {near}?" if near else "schedule=1f1b",
    )
