"""Orders: what each device of a synchronous schedule does, first to last.

S devices, M microbatches, v chunks a device. Device d holds the stages d, S + d, ... of
all vS. All gradients are those of the weights that the step began with.
"""

from collections.abc import Iterator

from jaxdist.pipeline.work_item import (
    DeviceOrder,
    WorkItem,
    backward,
    forward,
    weight_gradient,
)

DeviceOrders = tuple[DeviceOrder, ...]
"""One a device."""


def gpipe(devices: int, microbatches: int) -> DeviceOrders:
    """All forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""
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

    It begins with (S - 1 - d) + (v - 1) S forwards. The publication has S - 1 - d more,
    which hide the time that messages travel; in lock-step that time is part of every
    tick, so they would lengthen nothing and shorten nothing, and only be held.
    """

    def order(d: int) -> DeviceOrder:
        stages = range(d, devices * chunks, devices)
        ahead = [forward(*w) for w in _microbatch_groups(devices, microbatches, stages)]
        back = [
            backward(*w)
            for w in _microbatch_groups(devices, microbatches, stages[::-1])
        ]
        return warmup_then_1f1b(ahead, back, devices * chunks - 1 - d)

    return tuple(map(order, range(devices)))


def zero_bubble_h1(devices: int, microbatches: int) -> DeviceOrders:
    """1F1B whose bubble is filled with weights (Qi et al. 2023, arXiv 2401.10241).

    Device d is d microbatches behind with the gradients of its weights, so that those
    of its inputs reach the device before it sooner.
    """

    def order(d: int) -> Iterator[WorkItem]:
        todo = 0
        for work in one_f_one_b(devices, microbatches)[d]:
            yield work
            if work.kind == "backward" and work.microbatch >= d:
                yield weight_gradient(d, todo)
                todo += 1
        yield from (weight_gradient(d, m) for m in range(todo, microbatches))

    return tuple(tuple(order(d)) for d in range(devices))


def forward_orders(devices: int, microbatches: int, chunks: int) -> DeviceOrders:
    """Forwards alone, groups of S microbatches chunk by chunk."""

    def order(d: int) -> DeviceOrder:
        stages = range(d, devices * chunks, devices)
        return tuple(
            forward(*w) for w in _microbatch_groups(devices, microbatches, stages)
        )

    return tuple(map(order, range(devices)))


def warmup_then_1f1b(
    forwards: list[WorkItem], backwards: list[WorkItem], warmup: int
) -> DeviceOrder:
    """Some forwards, then one forward and one backward in turn, then what is left."""
    warmup = min(warmup, len(forwards))
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
