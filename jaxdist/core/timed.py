"""Timed: what tables of timed work have in common, kernels and blocks of networks.

Seconds are those of a device of some peak; one of another peak takes as much longer or
less.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from jaxdist.core.errors import BadInput
from jaxdist.core.number import Number

if TYPE_CHECKING:
    from jaxdist.core.kernel import Kernel
    from jaxdist.core.timed_block import TimedBlock

Work = TypeVar("Work", "Kernel", "TimedBlock")


def check_peak(what: str, peak: float, origin: str) -> None:
    """Refuse a table of a device that computes nothing.

    Args:
        what: was timed: `kernels`.
        peak: FLOPs a second of the device then.
        origin: as of a `Number`.

    Raises:
        BadInput: a peak of 0, or no number.
    """
    if Number(peak, origin).value == 0:
        raise BadInput(
            f"{what} of a device that computes nothing",
            rule="peak is the FLOPs a second of the device when they were timed",
            values=f"peak: {peak:g}",
            remedy="peak: 60 GFLOP/s",
        )


def slower(one: Work, times: float) -> Work:
    """Return timed work as if it took so many times as long.

    Args:
        one: work that was timed.
        times: above 0.
    """
    forward, backward = times * one.forward_s, times * one.backward_s
    return replace(one, forward_s=forward, backward_s=backward)
