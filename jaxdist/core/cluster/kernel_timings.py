"""Kernel timings: products, convolutions and whole blocks, and those of other shapes.

    seconds = least r,   log r = sum_i v_i log r_i / sum_i v_i,   v_i = 1 / d_i^4
    least   = max(FLOPs of full tiles / peak, numbers / memory rate) + launch
    r_i, d_i  seconds over least of the timed kernel i, and the distance to it

The distance is taken over the logarithms of how often a weight is used, of inputs and
of outputs, and of what a stride skips where memory counts: a product of few rows is as
slow as its weights are read, whatever its FLOPs. A kernel that was timed itself takes
what it took. `least` is the roofline of Williams et al. 2009
(doi:10.1145/1498765.1498785), with inputs and outputs filled up to whole tiles of the
matrix units; without memory rate, tile and launch it is FLOPs / peak, and r compares
rates.

Timed blocks: measured times of whole blocks of a network, by samples.

    log seconds(n)   linear in log n between the numbers of samples that were timed,
                     with the first slope below them; above them proportional to n
    kept(n)          proportional to n, from the nearest

A block is more than its products: what lies between them, and what is kept for the way
back, costs as much where they are small.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.kernel_shape import KERNEL_KINDS, KernelKind, KernelShape
from jaxdist.core.profile import Profile

FloatArray = NDArray[Any]
WorkTiming = TypeVar("WorkTiming", bound=Any)
"""A dataclass with the seconds of both passes: `forward_s` and `backward_s`."""

# How fast the weight of a timed kernel falls with its distance.
_POWER: Final = 4
# Distance at which a kernel is the timed one.
_HERE: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class KernelTiming:
    """A kernel that was timed."""

    shape: KernelShape
    """What it computes."""
    forward_s: float
    """Seconds of its forward pass."""
    backward_s: float
    """Seconds of both its gradients."""

    def __post_init__(self) -> None:
        if min(self.forward_s, self.backward_s, self.shape.flops) <= 0:
            raise BadInput(
                "a kernel that takes no time",
                rule="seconds and sizes of a kernel are above 0",
                values=f"{self}",
                remedy="jaxdist calibrate measures them",
            )

    @property
    def row(self) -> list[Any]:
        """The same as a row of a file; `of_row` reads it."""
        *sizes, reads = astuple(self.shape)
        # Tables that know no strides have no column for them.
        return [*sizes, self.forward_s, self.backward_s, *[reads] * (reads != 1)]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Read a row.

        Raises:
            BadInput: it has other columns, or another kind.
        """
        names = [field.name for field in fields(KernelShape)]
        columns = [*names[:-1], "forward_s", "backward_s", names[-1]]
        # The last may be left out.
        count = len(row) - len(columns)
        if count not in (-1, 0) or row[0] not in KERNEL_KINDS:
            raise BadInput(
                "no row of a kernel",
                rule=f"[{', '.join(columns)}], the last only where it is not 1, of "
                f"kind {' or '.join(KERNEL_KINDS)}",
                values=f"{list(row)}",
                remedy='["product", 1, 16, 64, 64, 1.0e-6, 3.0e-6]',
            )
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in row[1:]):
            raise BadInput(
                "a row of a kernel with words in it",
                rule="all but the kind are numbers",
                values=f"{list(row)}",
                remedy='["product", 1, 16, 64, 64, 1.0e-6, 3.0e-6]',
            )
        given = dict(zip(columns, row, strict=False))
        forward, backward = given.pop("forward_s"), given.pop("backward_s")
        shape = KernelShape(**given)
        return cls(shape=shape, forward_s=forward, backward_s=backward)


@dataclass(frozen=True, kw_only=True)
class KernelTimings:
    """Measured times of kernels on a device."""

    origin: str
    """As of a `SourcedNumber`."""
    peak: float
    """FLOPs a second of the device then; kernels of a faster one take less by that."""
    timed: tuple[KernelTiming, ...]
    """In any order; the last of equal shapes counts."""
    memory_rate: float | None = None
    """Numbers a second that memory passes; None: it bounds no kernel."""
    tile: int = 1
    """Side of the matrix units, to whose multiples inputs and outputs are filled up."""
    launch: float = 0.0
    """Seconds that a kernel takes at least; a backward pass has two."""

    def __post_init__(self) -> None:
        check_peak("kernels", self.peak, self.origin)
        if self.memory_rate is not None:
            check_peak("the memory", self.memory_rate, self.origin)
        if self.tile < 1:
            raise BadInput(
                "matrix units of no size",
                rule="tile is the side of a matrix unit, 1 where there are none",
                values=f"tile: {self.tile}",
                remedy="tile: 128",
            )

    def with_more(self, newer: "KernelTimings") -> "KernelTimings":
        """Add kernels; those timed again replace what they took before.

        Older seconds are scaled to the peak of the newer table, so what any device
        takes for them stays as it is.
        """
        before = (scale_time(one, self.peak / newer.peak) for one in self.timed)
        return replace(newer, timed=_latest((*before, *newer.timed)))

    def seconds(self, shape: KernelShape, peak: float) -> tuple[float, float] | None:
        """Return the seconds of forward and backward pass; None if none is alike.

        Args:
            shape: what the kernel computes.
            peak: FLOPs a second of the device.

        >>> small = KernelShape(kind="product", uses=16, inputs=64, outputs=64)
        >>> timed = (KernelTiming(shape=small, forward_s=1e-6, backward_s=3e-6),)
        >>> kernels = KernelTimings(origin="given: me", peak=1e9, timed=timed)
        >>> twice = KernelShape(kind="product", uses=32, inputs=64, outputs=64)
        >>> forward, backward = kernels.seconds(twice, 1e9)
        >>> round(1e6 * forward, 3), round(1e6 * backward, 3)
        (2.0, 6.0)
        """
        places, ratios = self._of_kind[shape.kind]
        if not len(places) or shape.flops <= 0:
            return None
        near = inverse_distance_weights(places - self._place(shape))
        longer = np.exp(near @ ratios / near.sum()) * self.peak / peak
        forward, backward = self._least_seconds(shape)
        return float(longer[0]) * forward, float(longer[1]) * backward

    def _least_seconds(self, shape: KernelShape) -> tuple[float, float]:
        """Return the roofline's seconds of forward and backward pass."""
        read, written = shape.taps * shape.inputs, shape.outputs
        # The gradient of the weights fills the tiles of the forward pass, that of the
        # input those of the transposed weights.
        forward = 2 * shape.uses * self._fill(read) * self._fill(written)
        taps = shape.taps * shape.outputs
        turned = 2 * shape.uses * self._fill(taps) * self._fill(shape.inputs)
        moved = 0.0
        if self.memory_rate is not None:
            each = shape.reads * shape.inputs + written
            numbers = shape.uses * each + read * written
            moved = numbers / self.memory_rate
        once = max(forward / self.peak, moved) + self.launch
        return once, once + max(turned / self.peak, moved) + self.launch

    def _place(self, shape: KernelShape) -> FloatArray:
        # Taps and inputs are summed over alike: an im2col product has their product.
        # What a stride reads in vain costs time where memory is counted.
        reads = 1.0 if self.memory_rate is None else shape.reads
        sizes = shape.uses, shape.taps * shape.inputs, shape.outputs, reads
        return np.log2(sizes)

    def _fill(self, features: float) -> float:
        if self.tile == 1:
            return features
        return math.ceil(features / self.tile) * self.tile

    @cached_property
    def _of_kind(self) -> dict[KernelKind, tuple[FloatArray, FloatArray]]:
        """Places and logarithms of seconds over the least, of both kinds of kernels."""
        found: dict[KernelKind, tuple[FloatArray, FloatArray]] = {}
        latest = _latest(self.timed)
        for kind in KERNEL_KINDS:
            each = [kernel for kernel in latest if kernel.shape.kind == kind]
            places = np.array([self._place(kernel.shape) for kernel in each])
            ratios = [
                np.log(
                    np.array([x.forward_s, x.backward_s]) / self._least_seconds(x.shape)
                )
                for x in each
            ]
            found[kind] = places, np.array(ratios)
        return found


def inverse_distance_weights(offsets: FloatArray) -> FloatArray:
    """Return how much each timed kernel or layer counts: 1 / distance^4.

    Args:
        offsets: from the one that is asked for, [timed ones, logarithms of sizes].
    """
    # With the floor one that was timed outweighs all others instead of being divided
    # by 0.
    distance = np.linalg.norm(offsets, axis=1)
    weights: FloatArray = np.maximum(distance, _HERE) ** -_POWER
    return weights


def _latest(timed: Iterable[KernelTiming]) -> tuple[KernelTiming, ...]:
    """Return the last kernel of each shape."""
    return tuple({kernel.shape: kernel for kernel in timed}.values())


def check_peak(kind: str, peak: float, origin: str) -> None:
    """Refuse a table of timed work whose device computes nothing.

    Raises:
        BadInput: the peak is 0 or not a number.
    """
    if SourcedNumber(peak, origin).value == 0:
        raise BadInput(
            f"{kind} of a device that computes nothing",
            rule="peak is the FLOPs a second of the device when they were timed",
            values=f"peak: {peak:g}",
            remedy="peak: 60 GFLOP/s",
        )


def read_row(kind: type, row: Sequence[Any], what: str, example: str) -> dict[str, Any]:
    """Return the fields of a timing whose first is a text and whose others are numbers.

    Args:
        kind: dataclass of the timing.
        row: its values, as they stand in a file.
        what: what was timed, for people.
        example: a row as it should be.

    Raises:
        BadInput: the row has other columns.
    """
    first, *others = [field.name for field in fields(kind)]
    # A bool is an int in Python, and no number of a table.
    kinds = [isinstance(x, int | float) and type(x) is not bool for x in row[1:]]
    if len(kinds) != len(others) or not isinstance(row[0], str) or not all(kinds):
        raise BadInput(
            f"no row of a {what}",
            rule=f"[{', '.join((first, *others))}], all but the {first} numbers",
            values=f"{list(row)}",
            remedy=example,
        )
    return dict(zip((first, *others), row, strict=True))


def scale_time(timing: WorkTiming, factor: float) -> WorkTiming:
    """Return a timing with both of its times multiplied by a factor."""
    forward, backward = factor * timing.forward_s, factor * timing.backward_s
    return replace(timing, forward_s=forward, backward_s=backward)


@dataclass(frozen=True, kw_only=True)
class BlockTiming:
    """A block that was timed."""

    key: str
    """Which block, as `block_signature` names it."""
    samples: float
    """Of the microbatch."""
    forward_s: float
    """Seconds of its forward pass, which writes what the backward pass needs."""
    backward_s: float
    """Seconds of its backward pass."""
    kept: float
    """Bytes that it keeps for the backward pass besides parameters and input."""

    def __post_init__(self) -> None:
        least = min(self.samples, self.forward_s, self.backward_s)
        if least <= 0 or self.kept < 0:
            raise BadInput(
                "a block that takes no time",
                rule="samples and seconds of a block are above 0, bytes 0 at least",
                values=f"{self}",
                remedy="jaxdist calibrate layers EXPERIMENT measures them",
            )

    @property
    def row(self) -> list[Any]:
        """The same as a row of a file; `of_row` reads it."""
        return list(astuple(self))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Read a row.

        Raises:
            BadInput: it has other columns.
        """
        example = '["Block-0123abcd", 8, 1.0e-3, 2.0e-3, 65536]'
        return cls(**read_row(cls, row, "block", example))


@dataclass(frozen=True, kw_only=True)
class BlockTimings:
    """Measured times of blocks of networks on a device."""

    origin: str
    """As of a `SourcedNumber`."""
    peak: float
    """FLOPs a second of the device then; blocks of a faster one take less by that."""
    timed: tuple[BlockTiming, ...]
    """In any order; the last of equal keys and samples counts."""

    def __post_init__(self) -> None:
        check_peak("blocks", self.peak, self.origin)

    def with_more(self, newer: "BlockTimings") -> "BlockTimings":
        """Add blocks; those timed again replace what they took before."""
        before = (scale_time(one, self.peak / newer.peak) for one in self.timed)
        return replace(newer, timed=_latest_blocks((*before, *newer.timed)))

    def at(self, key: str, samples: float, peak: float) -> BlockTiming | None:
        """Return what a block takes; None if it was not timed.

        Args:
            key: as `block_signature` names it.
            samples: of the microbatch, a fraction where devices share out a sample.
            peak: FLOPs a second of the device.

        >>> one = BlockTiming(
        ...     key="a", samples=2, forward_s=1.0, backward_s=2.0, kept=8
        ... )
        >>> four = replace(one, samples=8, forward_s=2.0, backward_s=8.0, kept=32)
        >>> blocks = BlockTimings(origin="given: me", peak=1.0, timed=(one, four))
        >>> found = blocks.at("a", 4, 1.0)
        >>> round(found.forward_s, 3), round(found.backward_s, 3), found.kept
        (1.414, 4.0, 16.0)
        """
        known = self._by_key.get(key)
        if not known or samples <= 0:
            return None
        # Kept bytes are exact and linear in samples, so the nearest entry suffices.
        near = min(known, key=lambda one: abs(math.log(one.samples / samples)))
        found = BlockTiming(
            key=key,
            samples=samples,
            forward_s=_between([(x.samples, x.forward_s) for x in known], samples),
            backward_s=_between([(x.samples, x.backward_s) for x in known], samples),
            kept=near.kept * samples / near.samples,
        )
        return scale_time(found, self.peak / peak)

    @cached_property
    def _by_key(self) -> dict[str, list[BlockTiming]]:
        found: dict[str, list[BlockTiming]] = {}
        for one in sorted(_latest_blocks(self.timed), key=lambda one: one.samples):
            found.setdefault(one.key, []).append(one)
        return found


def block_signature(profile: Profile, block: str) -> str:
    """Name what a block computes on a sample: the same for blocks of equal layers.

    Args:
        profile: of the network, on any batch.
        block: name of one of its chain.

    Returns:
        Its kind and eight hexadecimal digits, as `Block-0123abcd`.
    """
    whole = next(one for one in profile.blocks if one.name == block)
    # The last block also has the loss, so it is not the same as an equal one before it.
    last = whole is profile.blocks[-1]
    own = [
        (x.kind, x.weights, x.parameter_bytes, x.output_bytes // profile.batch)
        for x in profile.layers_of(block)
    ]
    digest = hashlib.sha256(repr((own, last)).encode()).hexdigest()
    return f"{whole.kind}-{digest[:8]}"


def _latest_blocks(timed: Sequence[BlockTiming]) -> tuple[BlockTiming, ...]:
    return tuple({(one.key, one.samples): one for one in timed}.values())


def _between(points: Sequence[tuple[float, float]], size: float) -> float:
    """Read a line through points over logarithms; above the last proportional."""
    last, most = points[-1]
    if size >= last or len(points) == 1:
        return most * size / last
    after = next(i for i, (one, _) in enumerate(points) if i and size <= one)
    (low, at_low), (high, at_high) = points[after - 1], points[after]
    # Noise can make more samples look faster; no block is predicted to be so.
    steep = math.log(at_high / at_low) / math.log(high / low)
    return at_low * math.exp(max(0.0, steep) * math.log(size / low))
