"""A link as measured: the time of an all-reduce over it, by algorithm.

    seconds = bytes that a device sends / rate + overhead(elements)

The bytes are those of the algorithm's formula. The rate is that of the exact sum,
between the two smallest of the arrays that were timed. The overhead is an algorithm's
own: its latency, its encoding, and that the backend may move its messages more slowly.
It is known for the arrays that were timed, and linear in between and beyond.
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
    """Time that an algorithm takes beyond its bytes."""

    algorithm: str
    """Name of the algorithm."""
    overhead_s: tuple[float, ...]
    """Seconds, for each of the link's arrays, or the smallest of them: slow algorithms
    are not timed on the largest."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Measurements along a mesh axis, the same on every device."""

    devices: int
    """Devices along it."""
    bytes_per_s: float
    """Bytes a second that a device sends in an exact sum."""
    element_counts: tuple[int, ...]
    """Sizes of the arrays that were timed, ascending."""
    overheads: tuple[AlgorithmOverhead, ...]
    """The algorithms that were timed."""

    def estimate_seconds(
        self,
        algorithm: AllReduceAlgorithm,
        shapes: Sequence[Shape],
        dtype: Any,
        sizes: Mapping[str, int],
    ) -> float:
        """Predict the seconds of a sum.

        Args:
            algorithm: how it is summed.
            shapes: of the arrays, which are summed as one.
            dtype: of the arrays.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: the algorithm, or so many devices, were not measured.

        >>> slow = AlgorithmOverhead(algorithm="exact", overhead_s=(1.0, 2.0, 6.0))
        >>> link = Link(devices=2, bytes_per_s=float("inf"),
        ...             element_counts=(10, 20, 40), overheads=(slow,))
        >>> [link.estimate_seconds(ExactAllReduce(), [(n,)], "float32", {"data": 2})
        ...  for n in (5, 15, 30, 50)]
        [1.0, 1.5, 4.0, 8.0]
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
        seconds = bytes_of(algorithm, shapes, dtype, sizes) / self.bytes_per_s
        # Piecewise linear: constant before the first array, the last slope beyond the
        # last.
        elements = sum(map(math.prod, shapes))
        timed, known = self.element_counts[: len(pace.overhead_s)], pace.overhead_s
        if elements <= timed[0]:
            return seconds + known[0]
        end = next((i for i, n in enumerate(timed) if elements <= n), len(timed) - 1)
        slope = (known[end] - known[end - 1]) / (timed[end] - timed[end - 1])
        return seconds + (known[end] + slope * (elements - timed[end]))


@dataclass(frozen=True, kw_only=True)
class AlgorithmTiming:
    """One algorithm, timed on arrays of one dtype."""

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
    """Fit a link to timings.

    Args:
        timings: of several algorithms, the exact one among them.
        shapes: of the arrays, two at least, the smallest first.
        dtype: of the arrays.
        sizes: {axis: devices along it}, outermost first.
    """
    # The exact sum encodes nothing, so its slope is the rate of the link.
    exact = next(each for each in timings if isinstance(each.algorithm, ExactAllReduce))
    sent = [bytes_of(exact.algorithm, [shape], dtype, sizes) for shape in shapes]
    # A link on which more bytes take no longer has no rate: then bytes cost nothing.
    rate = (sent[1] - sent[0]) / max(exact.seconds[1] - exact.seconds[0], 1e-9)
    paces = []
    for each in timings:
        moved = [bytes_of(each.algorithm, [shape], dtype, sizes) for shape in shapes]
        # Not strict: slow algorithms are timed on the smaller arrays alone.
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
    """Return the bytes that a device sends in a sum, by the algorithm's formula."""
    return sum(
        wire_bytes(
            each.kind, each.payload_bytes, math.prod(sizes[a] for a in each.axes)
        )
        for each in algorithm.payloads(shapes, dtype, sizes)
    )
