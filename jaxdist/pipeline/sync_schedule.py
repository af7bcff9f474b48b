"""Synchronous schedules: who does what in which tick of a step.

The same schedule drives the program that runs it, the count of ticks and bubbles, the
count of inputs that are held, and the drawing. A device does one work item a tick; what
is sent at the end of a superstep, of one tick or two, can be used from the next one on.

Orders are those of GPipe, 1F1B, interleaved 1F1B, eager 1F1B and zero bubble. S
devices, M microbatches, v chunks a device: device d holds the stages d, S + d, ... of
all vS. All gradients are those of the weights that the step began with.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.pipeline.schedule_base import (
    DeviceOrder,
    PipelineSchedule,
    Supersteps,
    WorkItem,
    backward,
    forward,
    lockstep_supersteps,
    weight_gradient,
)

DeviceOrders = tuple[DeviceOrder, ...]
"""One order a device."""


def gpipe(devices: int, microbatches: int) -> DeviceOrders:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
    # Device d is stage d: GPipe has one chunk a device.
    micros = range(microbatches)
    return tuple(
        (*(forward(d, m) for m in micros), *(backward(d, m) for m in micros))
        for d in range(devices)
    )


def one_f_one_b(devices: int, microbatches: int) -> DeviceOrders:
    """One forward, one backward, after S - 1 - d forwards (arXiv 2006.09503, "flush").

    Device d never holds more than S - d microbatches, where GPipe holds M.
    """
    return interleaved(devices, microbatches, chunks=1)


def interleaved(devices: int, microbatches: int, chunks: int) -> DeviceOrders:
    """1F1B with v chunks a device (Narayanan et al. 2021, arXiv 2104.04473).

    Microbatches go in groups of S: a device does a group on its first chunk, then on
    its second, and so on; backwards from the last chunk to the first.
    """
    orders = []
    for d in range(devices):
        stages = range(d, devices * chunks, devices)
        forwards = _microbatch_groups(devices, microbatches, stages)
        backwards = _microbatch_groups(devices, microbatches, stages[::-1])
        # The publication has S - 1 - d more warm-up forwards, which hide the time that
        # messages travel. In lock-step that time is part of every tick, so they would
        # shorten nothing and only hold more inputs.
        warmup = (devices - 1 - d) + (chunks - 1) * devices
        orders.append(
            warmup_then_1f1b(
                [forward(*at) for at in forwards],
                [backward(*at) for at in backwards],
                warmup,
            )
        )
    return tuple(orders)


def zero_bubble_h1(devices: int, microbatches: int) -> DeviceOrders:
    """1F1B whose bubble is filled with weights (Qi et al. 2023, arXiv 2401.10241).

    Device d is d microbatches behind with the gradients of its weights, so that those
    of its inputs reach the device before it sooner.
    """
    orders = []
    for d, base in enumerate(one_f_one_b(devices, microbatches)):
        # Weight gradients are done as soon as device d is d microbatches ahead; the
        # rest fills the end.
        order: list[WorkItem] = []
        pending = 0
        for work in base:
            order.append(work)
            if work.kind == "backward" and work.microbatch >= d:
                order.append(weight_gradient(d, pending))
                pending += 1
        order += [weight_gradient(d, m) for m in range(pending, microbatches)]
        orders.append(tuple(order))
    return tuple(orders)


def forward_orders(devices: int, microbatches: int, chunks: int) -> DeviceOrders:
    """Forwards alone, groups of S microbatches chunk by chunk."""
    stages = [range(d, devices * chunks, devices) for d in range(devices)]
    return tuple(
        tuple(forward(*at) for at in _microbatch_groups(devices, microbatches, own))
        for own in stages
    )


def eager_1f1b(devices: int, microbatches: int, chunks: int) -> Supersteps:
    """Eager 1F1B: a forward and a backward of each device in every superstep.

    Devices in lock-step pay for the longest work of a tick. In 1F1B neighbours are out
    of phase: while one goes forward the next goes backward, and a microbatch takes
    2 max(F, B) instead of F + B. Here all go forward in the same tick and backward in
    the next, and exchange messages after both. A step takes

        (v M + S - 1) (F + B) / v

    which is no more than GPipe. At most (v + 1) S - 1 chunks keep residuals, where 1F1B
    has v S: stages run ahead of their backward passes by twice as much (Zhuang et al.
    2022, arXiv 2211.05322, "eager-1F1B", who hide messages behind it).

    Args:
        devices: devices along the pipe, S.
        microbatches: microbatches of a step, M; with more than one chunk a multiple
            of S.
        chunks: chunks of the network on each device, v.

    >>> [len(step) for step in eager_1f1b(devices=2, microbatches=3, chunks=1)]
    [1, 2, 2, 2, 1]
    """
    last = devices * chunks - 1
    forwards: dict[int, dict[int, WorkItem]] = defaultdict(dict)
    backwards: dict[int, dict[int, WorkItem]] = defaultdict(dict)
    for micro in range(microbatches):
        # Microbatches go in groups of S, each group through all chunks of a device
        # before the next group enters.
        group, place = divmod(micro, devices)
        entry = group * devices * chunks + place
        for stage in range(last + 1):
            device = stage % devices
            forwards[entry + stage][device] = forward(stage, micro)
            # The last stage goes back in the superstep in which it went forward.
            backwards[entry + 2 * last - stage][device] = backward(stage, micro)

    return tuple(
        tuple(
            tuple(map(row.get, range(devices)))
            # Two ticks, each of one work a device, as in all other schedules.
            for row in (forwards.get(number), backwards.get(number))
            if row
        )
        for number in range(max(backwards) + 1)
    )


def warmup_then_1f1b(
    forwards: list[WorkItem], backwards: list[WorkItem], warmup: int
) -> DeviceOrder:
    """Some forwards, then one forward and one backward in turn, then what is left."""
    warmup = min(warmup, len(forwards))
    # Steady state: each backward frees the residuals that the next forward needs.
    pairs = zip(forwards[warmup:], backwards)
    steady = (work for pair in pairs for work in pair)
    return (*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :])


def _microbatch_groups(
    devices: int, microbatches: int, stages: range
) -> Iterator[tuple[int, int]]:
    """Yield (stage, microbatch): a group of S microbatches on each stage in turn."""
    for first in range(0, microbatches, devices):
        for stage in stages:
            for micro in range(first, min(first + devices, microbatches)):
                yield stage, micro


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


ZERO_BUBBLE_H1: Final = "zb-h1"
"""The schedule whose gradients of weights have ticks of their own."""

SINGLE_CHUNK_SCHEDULES: Final[Mapping[str, Callable[[int, int], DeviceOrders]]] = (
    MappingProxyType(
        {
            "gpipe": gpipe,
            "1f1b": one_f_one_b,
            ZERO_BUBBLE_H1: zero_bubble_h1,
        }
    )
)
"""Schedules with one chunk a device."""

FULL_PIPELINE_SCHEDULES: Final = frozenset({ZERO_BUBBLE_H1})
"""Those of them that need as many microbatches as devices."""

INTERLEAVED_SCHEDULES: Final[Mapping[str, Callable[[int, int, int], DeviceOrders]]] = (
    MappingProxyType({"interleaved": interleaved})
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
        supersteps = eager_1f1b(devices, microbatches, chunks)
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
    lists = forward_orders(devices, microbatches, chunks)
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
