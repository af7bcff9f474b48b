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

    algorithm: str
    """Name of the way."""
    overhead_s: tuple[float, ...]
    """Seconds, for each of the link's arrays, or the smallest of them: what takes long
    is not timed on the largest."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What was measured along a mesh axis, the same on every device."""

    devices: int
    """Devices along it."""
    bytes_per_s: float
    """Bytes a second that a device sends in an exact sum."""
    element_counts: tuple[int, ...]
    """Sizes of the arrays that were timed, ascending."""
    overheads: tuple[AlgorithmOverhead, ...]
    """The ways that were timed."""

    def estimate_seconds(
        self,
        algorithm: AllReduceAlgorithm,
        shapes: Sequence[Shape],
        dtype: Any,
        sizes: Mapping[str, int],
    ) -> float:
        """Predict how long a sum takes.

        Args:
            algorithm: how it is made.
            shapes: of the arrays that are summed as one.
            dtype: of their numbers.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: the way, or so many devices, were not measured.
        """
        pace = next(
            (pace for pace in self.overheads if pace.algorithm == algorithm.name), None
        )
        if pace is None or devices_along(sizes) != self.devices:
            raise BadInput(
                f"nobody measured {algorithm.name} over {devices_along(sizes)} devices",
                rule="a choice is between ways that were measured on this axis",
                values=f"measured over {self.devices} devices: "
                f"{', '.join(pace.algorithm for pace in self.overheads)}",
                remedy="measure(mesh, axis, among)",
            )
        numbers = sum(map(math.prod, shapes))
        sent = bytes_of(algorithm, shapes, dtype, sizes)
        timed = self.element_counts[: len(pace.overhead_s)]
        return sent / self.bytes_per_s + _along(timed, pace.overhead_s, numbers)


@dataclass(frozen=True, kw_only=True)
class AlgorithmTiming:
    """One way, timed on arrays of one dtype."""

    algorithm: AllReduceAlgorithm
    """How they were summed."""
    seconds: tuple[float, ...]
    """One for each array, or for the smallest of them; two at least."""


def fit_link(
    timings: Sequence[AlgorithmTiming],
    shapes: Sequence[Shape],
    dtype: Any,
    sizes: Mapping[str, int],
) -> Link:
    """Return the link that explains what was timed.

    Args:
        timings: the ways, the exact one among them.
        shapes: of the arrays, two at least, the smallest first.
        dtype: of their numbers.
        sizes: {axis: devices along it}, outermost first.
    """
    exact = next(each for each in timings if isinstance(each.algorithm, ExactAllReduce))
    sent = [bytes_of(exact.algorithm, [shape], dtype, sizes) for shape in shapes]
    # A link on which more bytes take no longer has no rate: then bytes cost nothing.
    rate = (sent[1] - sent[0]) / max(exact.seconds[1] - exact.seconds[0], 1e-9)
    paces = []
    for each in timings:
        moved = [bytes_of(each.algorithm, [shape], dtype, sizes) for shape in shapes]
        pairs = zip(each.seconds, moved, strict=False)
        beyond = tuple(seconds - size / rate for seconds, size in pairs)
        paces.append(
            AlgorithmOverhead(algorithm=each.algorithm.name, overhead_s=beyond)
        )
    return Link(
        devices=devices_along(sizes),
        bytes_per_s=rate,
        element_counts=tuple(map(math.prod, shapes)),
        overheads=tuple(paces),
    )


def bytes_of(
    algorithm: AllReduceAlgorithm,
    shapes: Sequence[Shape],
    dtype: Any,
    sizes: Mapping[str, int],
) -> int:
    """Return the bytes that a device sends in a sum, by the way's formula."""
    return sum(
        wire_bytes(
            each.kind, each.payload_bytes, math.prod(sizes[a] for a in each.axes)
        )
        for each in algorithm.payloads(shapes, dtype, sizes)
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
