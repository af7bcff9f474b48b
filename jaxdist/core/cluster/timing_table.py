"""Timed: what tables of timed work have in common, kernels and blocks of networks.

Seconds are those of a device of some peak; one of another peak takes as much longer or
less.
"""

from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput


class Timed(Protocol):
    """Work that was timed: a dataclass with the seconds of both passes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def forward_s(self) -> float:
        """Seconds of the forward pass."""

    @property
    def backward_s(self) -> float:
        """Seconds of the backward pass."""


WorkTiming = TypeVar("WorkTiming", bound=Timed)


def check_peak(kind: str, peak: float, origin: str) -> None:
    """Refuse a table of a device that computes nothing.

    Args:
        kind: was timed: `kernels`.
        peak: FLOPs a second of the device then.
        origin: as of a `SourcedNumber`.

    Raises:
        BadInput: a peak of 0, or no number.
    """
    if SourcedNumber(peak, origin).value == 0:
        raise BadInput(
            f"{kind} of a device that computes nothing",
            rule="peak is the FLOPs a second of the device when they were timed",
            values=f"peak: {peak:g}",
            remedy="peak: 60 GFLOP/s",
        )


def scale_time(timing: WorkTiming, factor: float) -> WorkTiming:
    """Return timed work as if it took so many times as long.

    Args:
        timing: work that was timed.
        factor: above 0.
    """
    forward, backward = factor * timing.forward_s, factor * timing.backward_s
    return replace(timing, forward_s=forward, backward_s=backward)
