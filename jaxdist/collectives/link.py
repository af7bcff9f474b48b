"""A link as it was measured: what a sum over it costs, by the way it is made.

    seconds(way) = bytes that a device sends / rate + beyond(numbers)

The bytes are those of the way's formula. The rate is that of the exact sum, between the
two smallest of the arrays that were timed. What a way takes beyond is its own: a start,
packing, and that the backend may move its messages more slowly. It is known for the
arrays that were timed; in between and behind it goes along straight lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Shape, devices_along
from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class AlgorithmOverhead:
    """What one way to sum costs beyond its bytes."""

    via: str
    """Name of the way."""
    beyond: tuple[float, ...]
    """Seconds, for each of the link's arrays, or the smallest of them: what takes long
    is not timed on the largest."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What was measured along a mesh axis, the same on every device."""

    devices: int
    """Devices along it."""
    rate: float
    """Bytes a second that a device sends in an exact sum."""
    numbers: tuple[int, ...]
    """Sizes of the arrays that were timed, ascending."""
    paces: tuple[AlgorithmOverhead, ...]
    """The ways that were timed."""

    def seconds(
        self,
        way: AllReduceAlgorithm,
        shapes: Sequence[Shape],
        dtype: Any,
        sizes: Mapping[str, int],
    ) -> float:
        """Predict how long a sum takes.

        Args:
            way: how it is made.
            shapes: of the arrays that are summed as one.
            dtype: of their numbers.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: the way, or so many devices, were not measured.
        """
        pace = next((pace for pace in self.paces if pace.via == way.name), None)
        if pace is None or devices_along(sizes) != self.devices:
            raise BadInput(
                f"nobody measured {way.name} over {devices_along(sizes)} devices",
                rule="a choice is between ways that were measured on this axis",
                values=f"measured over {self.devices} devices: "
                f"{', '.join(pace.via for pace in self.paces)}",
                remedy="measure(mesh, axis, among)",
            )
        numbers = sum(map(math.prod, shapes))
        sent = bytes_of(way, shapes, dtype, sizes)
        timed = self.numbers[: len(pace.beyond)]
        return sent / self.rate + _along(timed, pace.beyond, numbers)


@dataclass(frozen=True, kw_only=True)
class AlgorithmTiming:
    """One way, timed on arrays of one dtype."""

    way: AllReduceAlgorithm
    """How they were summed."""
    seconds: tuple[float, ...]
    """One for each array, or for the smallest of them; two at least."""


def fit_link(
    timed: Sequence[AlgorithmTiming],
    shapes: Sequence[Shape],
    dtype: Any,
    sizes: Mapping[str, int],
) -> Link:
    """Return the link that explains what was timed.

    Args:
        timed: the ways, the exact one among them.
        shapes: of the arrays, two at least, the smallest first.
        dtype: of their numbers.
        sizes: {axis: devices along it}, outermost first.
    """
    exact = next(each for each in timed if isinstance(each.way, ExactAllReduce))
    sent = [bytes_of(exact.way, [shape], dtype, sizes) for shape in shapes]
    # A link on which more bytes take no longer has no rate: then bytes cost nothing.
    rate = (sent[1] - sent[0]) / max(exact.seconds[1] - exact.seconds[0], 1e-9)
    paces = []
    for each in timed:
        moved = [bytes_of(each.way, [shape], dtype, sizes) for shape in shapes]
        pairs = zip(each.seconds, moved, strict=False)
        beyond = tuple(seconds - size / rate for seconds, size in pairs)
        paces.append(AlgorithmOverhead(via=each.way.name, beyond=beyond))
    return Link(
        devices=devices_along(sizes),
        rate=rate,
        numbers=tuple(map(math.prod, shapes)),
        paces=tuple(paces),
    )


def bytes_of(
    way: AllReduceAlgorithm,
    shapes: Sequence[Shape],
    dtype: Any,
    sizes: Mapping[str, int],
) -> int:
    """Return the bytes that a device sends in a sum, by the way's formula."""
    return sum(
        wire_bytes(each.kind, each.size, math.prod(sizes[a] for a in each.axes))
        for each in way.payloads(shapes, dtype, sizes)
    )


def _along(places: Sequence[int], values: Sequence[float], place: int) -> float:
    """Read a line through points, the first value before them, the last slope behind.

    >>> [_along((10, 20, 40), (1.0, 2.0, 6.0), place) for place in (5, 15, 30, 50)]
    [1.0, 1.5, 4.0, 8.0]
    """
    if place <= places[0]:
        return values[0]
    end = next((i for i, p in enumerate(places) if place <= p), len(places) - 1)
    slope = (values[end] - values[end - 1]) / (places[end] - places[end - 1])
    return values[end] + slope * (place - places[end])
