"""All-reduce algorithms by name, and the fastest of them on a measured link.

A link as measured: the time of an all-reduce over it, by algorithm.

    seconds = bytes that a device sends / rate + overhead(elements)

The bytes are those of the algorithm's formula. The rate is that of the exact sum,
between the two smallest of the arrays that were timed. The overhead is an algorithm's
own: its latency, its encoding, and that the backend may move its messages more slowly.
It is known for the arrays that were timed, and linear in between and beyond.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.compress.chunked_top_k import ChunkedTopK
from jaxdist.collectives.compress.codec import (
    Bf16Codec,
    BlockQuantizationCodec,
    Codec,
    SignCodec,
)
from jaxdist.collectives.compress.exact import ExactAllReduce, ScheduledAllReduce
from jaxdist.collectives.compress.hierarchical import HierarchicalAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Shape, devices_along
from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.compress.random_k import RandomK
from jaxdist.collectives.compress.reduce_scatter_allgather import (
    MajorityVote,
    TwoPhaseAllReduce,
)
from jaxdist.collectives.compress.shared_top_k import SharedTopK
from jaxdist.collectives.compress.sparse import OkTopK
from jaxdist.collectives.compress.top_k_allgather import TopKAllGather
from jaxdist.collectives.compress.top_k_codec import TopKCodec
from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.reduction import ReductionConfig, StatelessCompressor

ALL_REDUCE_ALGORITHMS: Final[Mapping[str, AllReduceAlgorithm]] = MappingProxyType(
    {
        method.name: method
        for method in (
            ExactAllReduce(),
            TwoPhaseAllReduce(codec=Bf16Codec()),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="fp8")),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int8")),
            TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int4")),
            MajorityVote(codec=SignCodec()),
            RandomK(),
            TopKAllGather(codec=TopKCodec()),
            OkTopK(),
            SharedTopK(),
            HierarchicalAllReduce(),
            PowerSGD(),
            *(ScheduledAllReduce(schedule=name) for name in SCHEDULES),
        )
    }
)
"""Every algorithm by its name."""


def make_algorithm(config: ReductionConfig) -> AllReduceAlgorithm:
    """Return the algorithm of a plan, with the plan's settings.

    >>> make_algorithm(ReductionConfig(algorithm="power", rank=2))
    PowerSGD(rank=2)
    """
    # Settings of a plan replace the defaults; other algorithms have none.
    method = ALL_REDUCE_ALGORITHMS[config.algorithm]
    picks = TopKCodec(density=config.density)
    match method:
        case TwoPhaseAllReduce(codec=BlockQuantizationCodec() as codec):
            return replace(method, codec=replace(codec, block_size=config.block_size))
        case TwoPhaseAllReduce(codec=TopKCodec()) | TopKAllGather():
            return replace(method, codec=picks)
        case RandomK() | SharedTopK():
            return replace(method, density=config.density)
        case HierarchicalAllReduce():
            # Inside a host sums are exact; the density is that of what crosses hosts.
            return replace(method, inter_host=TopKAllGather(codec=picks))
        case PowerSGD():
            return replace(method, rank=config.rank)
    return method


def make_stateless_compressor(
    name: StatelessCompressor, block_size: int
) -> tuple[AllReduceAlgorithm, Codec | None]:
    """Return a stateless algorithm, and the codec of its messages.

    >>> make_stateless_compressor("exact", 256)
    (ExactAllReduce(), None)
    """
    method = make_algorithm(ReductionConfig(algorithm=name, block_size=block_size))
    return method, method.codec if isinstance(method, TwoPhaseAllReduce) else None


def make_outer_algorithm(config: OuterConfig) -> AllReduceAlgorithm:
    """Return the algorithm that sums the differences of replicas.

    >>> make_outer_algorithm(OuterConfig())
    ExactAllReduce()
    """
    if config.compressor == "chunked_top_k":
        return ChunkedTopK(density=config.density, quantize=config.quantize)
    # 256: numbers that share one scale.
    return make_stateless_compressor(config.compressor, 256)[0]


def resolve_algorithm(algorithm: str | AllReduceAlgorithm) -> AllReduceAlgorithm:
    """Return the algorithm of a name, or the algorithm itself.

    Raises:
        BadInput: no algorithm has this name.

    >>> resolve_algorithm("int8").name
    'int8'
    """
    if isinstance(algorithm, AllReduceAlgorithm):
        return algorithm
    if algorithm in ALL_REDUCE_ALGORITHMS:
        return ALL_REDUCE_ALGORITHMS[algorithm]
    near = did_you_mean(algorithm, ALL_REDUCE_ALGORITHMS)
    raise BadInput(
        f"no all-reduce algorithm named {algorithm}",
        rule="algorithm is a name, or a method of jaxdist.collectives.compress",
        values=f"algorithm = {algorithm}; "
        f"there are {', '.join(ALL_REDUCE_ALGORITHMS)}, auto",
        remedy=f'algorithm="{near or "int8"}"',
    )


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
        # Bytes by formula, the rest by measurement: PowerSGD's bytes grow with the root
        # of its numbers, and no line through seconds would fit them.
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


TIE_TOLERANCE: Final = 1.03
"""Algorithms tie where one takes at most so many times as long as the other."""


@dataclass(frozen=True, kw_only=True)
class AutoAlgorithm:
    """A choice of algorithms; without a link, the exact sum of the backend."""

    candidates: tuple[AllReduceAlgorithm, ...] = (ExactAllReduce(),)
    """Algorithms by preference: the first of those that tie is taken."""
    link: Link | None = None
    """Measurements of all of them."""

    def select(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> AllReduceAlgorithm:
        """Return the algorithm for arrays of these shapes; integers are summed exactly.

        Args:
            shapes: of the arrays, which are summed as one.
            dtype: of the arrays.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: an algorithm or a number of devices that was not measured.
        """
        # Lossy algorithms are for floats.
        floats = np.issubdtype(dtype, np.floating)
        if self.link is None or not (shapes and sizes and floats):
            return ExactAllReduce()
        return select_fastest(self.candidates, [shapes], dtype, sizes, self.link)


def select_fastest(
    candidates: Sequence[AllReduceAlgorithm],
    reductions: Sequence[Sequence[Shape]],
    dtype: Any,
    sizes: Mapping[str, int],
    link: Link,
) -> AllReduceAlgorithm:
    """Return the algorithm that is fastest for several reductions in turn.

    Args:
        candidates: by preference.
        reductions: shapes of the arrays of each.
        dtype: of the arrays.
        sizes: {axis: devices along it}, outermost first.
        link: the measurements.

    Raises:
        BadInput: an algorithm or a number of devices that was not measured.
    """
    seconds = [
        sum(link.estimate_seconds(way, shapes, dtype, sizes) for shapes in reductions)
        for way in candidates
    ]
    # By preference among near equals, so that noise in the measurement does not choose.
    near = TIE_TOLERANCE * min(seconds)
    return next(way for way, s in zip(candidates, seconds, strict=True) if s <= near)
