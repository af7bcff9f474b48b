"""Timed kernels: products and convolutions, and what one of another shape takes.

    seconds = FLOPs / rate,   log rate = sum_i v_i log rate_i / sum_i v_i,
    v_i = 1 / d_i^4,          d_i = distance to the timed kernel i

The distance is taken over the logarithms of how often a weight is used, of inputs and
of outputs: a product of few rows is as slow as its weights are read, whatever its
FLOPs. A kernel that was timed itself takes what it took.
"""

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
        return [*astuple(self.shape), self.forward_s, self.backward_s]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Read a row.

        Raises:
            BadInput: it has other columns, or another kind.
        """
        names = [field.name for field in fields(KernelShape)]
        if len(row) != len(names) + 2 or row[0] not in KERNEL_KINDS:
            raise BadInput(
                "no row of a kernel",
                rule=f"[{', '.join(names)}, forward_s, backward_s], of kind "
                f"{' or '.join(KERNEL_KINDS)}",
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
        *sizes, forward, backward = row
        shape = KernelShape(**dict(zip(names, sizes, strict=True)))
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

    def __post_init__(self) -> None:
        check_peak("kernels", self.peak, self.origin)

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
        places, rates = self._of_kind[shape.kind]
        if not len(places) or shape.flops <= 0:
            return None
        # Inverse distance weighting. With the floor a timed kernel outweighs all others
        # instead of being divided by 0.
        distance = np.linalg.norm(places - _place(shape), axis=1)
        near = np.maximum(distance, _HERE) ** -_POWER
        forward, backward = np.exp(near @ rates / near.sum())
        work = shape.flops * self.peak / peak
        return work / float(forward), 2 * work / float(backward)

    @cached_property
    def _of_kind(self) -> dict[KernelKind, tuple[FloatArray, FloatArray]]:
        """Places and logarithms of rates, of products and of convolutions."""
        found: dict[KernelKind, tuple[FloatArray, FloatArray]] = {}
        latest = _latest(self.timed)
        for kind in KERNEL_KINDS:
            each = [kernel for kernel in latest if kernel.shape.kind == kind]
            places = np.array([_place(kernel.shape) for kernel in each])
            # A backward pass has two products of the size of the forward pass's one.
            rates = [
                (
                    math.log(x.shape.flops / x.forward_s),
                    math.log(2 * x.shape.flops / x.backward_s),
                )
                for x in each
            ]
            found[kind] = places, np.array(rates)
        return found


def _latest(timed: Iterable[KernelTiming]) -> tuple[KernelTiming, ...]:
    """Return the last kernel of each shape."""
    return tuple({kernel.shape: kernel for kernel in timed}.values())


def _place(shape: KernelShape) -> FloatArray:
    # Taps and inputs are summed over alike: an im2col product has their product.
    sizes = shape.uses, shape.taps * shape.inputs, shape.outputs
    return np.log2(sizes)


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


def scale_time(timing: WorkTiming, factor: float) -> WorkTiming:
    """Return a timing with both of its times multiplied by a factor."""
    forward, backward = factor * timing.forward_s, factor * timing.backward_s
    return replace(timing, forward_s=forward, backward_s=backward)
