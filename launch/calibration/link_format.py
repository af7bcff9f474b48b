"""Wires: what a message and a byte cost, and where that changes, for people."""

from jaxdist.calibrate.algorithm_switch import AlgorithmSwitch


def micro(seconds: float) -> str:
    """Write a short time.

    >>> micro(2.15e-5)
    '21.5 us'
    """
    return f"{1e6 * seconds:,.3g} us"


def rate(value: float) -> str:
    """Write bytes a second.

    >>> rate(25e6)
    '25.0 MB/s'
    """
    from jaxdist.core.text.formatting import size

    return size(value, "B/s")


def switched(one: AlgorithmSwitch) -> str:
    """Say between which sizes an algorithm changes, and what there is on each side."""
    from jaxdist.core.text.formatting import percent

    return (
        f"  switch   {one.program} between {one.below:,} B and {one.above:,} B: "
        f"{micro(one.small.alpha)} and {rate(one.small.bandwidth)} below, "
        f"{micro(one.large.alpha)} and {rate(one.large.bandwidth)} above; "
        f"{percent(one.spread)} from two lines"
    )
