"""Skew: what of a collective behind long kernels is a wait for devices that are late.

    skew = there and back behind long kernels - there and back behind short ones

of the smallest arrays, whose bytes take no time. Devices that computed as long as each
other do not end together where they share processors: what a stage then waits is the
same for an array of any size, and nothing where another stage computes for longer
anyway (`jaxdist/oracle/schedule_times.py`). So it is kept apart from what links take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxdist.calibrate.alpha_beta_fit import CollectiveTiming


@dataclass(frozen=True, kw_only=True)
class SkewSplit:
    """Timings, and the wait that was in them."""

    timings: tuple[CollectiveTiming, ...]
    """Without it."""
    skew: float
    """Seconds that devices wait for the last, once for as many as follow a kernel."""


def separate_skew(
    after_long: Sequence[CollectiveTiming], after_short_s: float, per_kernel: int
) -> SkewSplit:
    """Take the wait out of timings.

    Args:
        after_long: of collectives behind long kernels, the smallest array first.
        after_short_s: seconds of the smallest one behind short kernels.
        per_kernel: collectives that follow a kernel, the first of which waits.

    >>> some = [CollectiveTiming(kind="collective-permute", payload=8, seconds=3e-3)]
    >>> found = separate_skew(some, after_short_s=1e-3, per_kernel=2)
    >>> found.skew, found.timings[0].seconds
    (0.004, 0.001)
    """
    wait = max(0.0, after_long[0].seconds - after_short_s)
    least = min(after_short_s, after_long[0].seconds)
    timings = tuple(
        replace(one, seconds=max(least, one.seconds - wait)) for one in after_long
    )
    return SkewSplit(timings=timings, skew=per_kernel * wait)
