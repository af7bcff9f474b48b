"""Synchronous schedules: the order of work of each device, first to last.

S devices, M microbatches, v chunks a device. Device d holds the stages d, S + d, ... of
all vS. All gradients are those of the weights that the step began with.
"""

from collections import defaultdict
from collections.abc import Iterator

from jaxdist.pipeline.schedule_base import (
    DeviceOrder,
    Supersteps,
    WorkItem,
    backward,
    forward,
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
            backwards[entry + 2 * last - stage][device] = backward(stage, micro)

    return tuple(
        tuple(
            tuple(map(row.get, range(devices)))
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
