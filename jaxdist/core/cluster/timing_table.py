"""What the tables of timed kernels and of timed blocks have in common.

Seconds are those of a device of some peak; one of another peak takes as much longer or
less.
"""

from dataclasses import replace
from typing import Any, TypeVar

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

WorkTiming = TypeVar("WorkTiming", bound=Any)
"""A dataclass with the seconds of both passes: `forward_s` and `backward_s`."""


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
    """Return a timing with both of its times multiplied by a factor."""
    forward, backward = factor * timing.forward_s, factor * timing.backward_s
    return replace(timing, forward_s=forward, backward_s=backward)
