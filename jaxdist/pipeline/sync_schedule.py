"""Synchronous schedules: who does what in which tick of a step.

The same schedule drives the program that runs it, the count of ticks and bubbles, the
count of inputs that are held, and the drawing. A device does one work item a tick; what
is sent at the end of a superstep, of one tick or two, can be used from the next one on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.pipeline import orders
from jaxdist.pipeline.orders import DeviceOrders
from jaxdist.pipeline.schedule_base import (
    PipelineSchedule,
    WorkItem,
    lockstep_supersteps,
)


@dataclass(frozen=True, kw_only=True)
class SyncSchedule(PipelineSchedule):
    """The ticks of one step, all of whose microbatches see the same weights."""

    devices: int
    """Devices along the pipe, from 0."""
    chunks: int
    """Stages a device; stage s lies on device s % devices."""

    @property
    def stages(self) -> int:
        """Chunks that the network is cut into."""
        return self.devices * self.chunks

    def device_of(self, stage: int) -> int:
        """Return the device that a stage lies on."""
        return stage % self.devices

    @property
    def title(self) -> str:
        """Name the schedule and its sizes, in a line."""
        each = f" of {self.chunks} chunks" if self.chunks > 1 else ""
        devices = f"{self.devices} {'device' if each else 'stage'}"
        micros = f"{self.microbatches} microbatch{'es' * (self.microbatches > 1)}"
        return f"{self.name}, {devices}{'s' * (self.devices > 1)}{each}, {micros}"

    def lane(self, device: int) -> str:
        """Name the row of a device."""
        return f"{'device' if self.chunks > 1 else 'stage'} {device}"

    def label(self, work: WorkItem) -> str:
        """Name a work item by its microbatch, and its chunk (a, b, ...) if many."""
        letter = chr(ord("a") + work.stage // self.devices) if self.chunks > 1 else ""
        return f"{work.microbatch}{letter}"

    def note(self, device: int) -> str:
        """Say how many microbatches a device holds."""
        if not self.release_kind:
            return ""
        flying, held = self.in_flight(device), self.live_inputs(device)
        more = f", {held} held" if self.release_kind == "weights" else ""
        return f"{flying} in flight{more}"


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
"""Those of them that need as many microbatches as devices."""

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
    """Return a synchronous schedule by name.

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


# Tracing asks for the schedule of a step several times over.
@lru_cache(maxsize=8)
def _cached_schedule(
    name: str, devices: int, microbatches: int, chunks: int
) -> SyncSchedule:
    _check_positive(devices, microbatches, chunks)
    if name not in SYNC_SCHEDULES:
        near = did_you_mean(name, SYNC_SCHEDULES)
        raise BadInput(
            f"no schedule named {name}",
            rule=f"one of {', '.join(SYNC_SCHEDULES)}",
            values=f"schedule={name}",
            remedy=f"did you mean {near}?" if near else "schedule=1f1b",
        )
    if name in SINGLE_CHUNK_SCHEDULES and chunks > 1:
        raise BadInput(
            f"the schedule {name} does not take chunks",
            rule=f"{name} has one chunk of the network on each device",
            values=f"chunks={chunks}",
            remedy=(f"schedule=interleaved chunks={chunks}", "or chunks=1"),
        )
    if name in FULL_PIPELINE_SCHEDULES and microbatches < devices:
        raise BadInput(
            f"too few microbatches for {name}",
            rule="microbatches is at least the number of devices: with fewer there are "
            "ticks that no gradient of weights can fill",
            values=f"microbatches={microbatches}, devices={devices}",
            remedy=(f"microbatches={devices}", "or schedule=1f1b"),
        )
    if name in INTERLEAVED_SCHEDULES and chunks == 1:
        raise BadInput(
            f"the schedule {name} has nothing to interleave",
            rule="it has at least 2 chunks of the network on each device",
            values="chunks=1",
            remedy=("chunks=2", "or schedule=1f1b"),
        )
    # With chunks, microbatches go round the devices in whole groups.
    rest = microbatches % devices
    if chunks > 1 and rest:
        below, above = microbatches - rest, microbatches - rest + devices
        near_by = [f"microbatches={n}" for n in (below, above) if n]
        what = f"{name} with chunks" if name == EAGER_1F1B else name
        raise BadInput(
            f"the microbatches of {what} do not go round the devices",
            rule="microbatches is a multiple of devices",
            values=f"microbatches={microbatches}, devices={devices}",
            remedy=" or ".join(near_by),
        )

    if name == EAGER_1F1B:
        supersteps = orders.eager_1f1b(devices, microbatches, chunks)
    else:
        # All others are orders of work, whose ticks follow from lock-step.
        lists = (
            SINGLE_CHUNK_SCHEDULES[name](devices, microbatches)
            if name in SINGLE_CHUNK_SCHEDULES
            else INTERLEAVED_SCHEDULES[name](devices, microbatches, chunks)
        )
        supersteps = lockstep_supersteps(lists, devices * chunks)
    return SyncSchedule(
        name=name,
        devices=devices,
        chunks=chunks,
        microbatches=microbatches,
        supersteps=supersteps,
    )


def forward_only(devices: int, microbatches: int, chunks: int = 1) -> SyncSchedule:
    """Return the schedule of an evaluation: forward passes alone.

    Raises:
        BadInput: a number below 1.

    >>> forward_only(devices=4, microbatches=8).length
    11
    """
    _check_positive(devices, microbatches, chunks)
    lists = orders.forward_orders(devices, microbatches, chunks)
    return SyncSchedule(
        name="forward",
        devices=devices,
        chunks=chunks,
        microbatches=microbatches,
        supersteps=lockstep_supersteps(lists, devices * chunks),
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
