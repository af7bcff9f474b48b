"""Wires: what a message and a byte cost, and where that changes, for people."""

from jaxdist.calibrate.alpha_beta_fit import AlgorithmSwitch


def format_microseconds(seconds: float) -> str:
    """Write a short time.

    >>> format_microseconds(2.15e-5)
    '21.5 us'
    """
    return f"{1e6 * seconds:,.3g} us"


def format_bandwidth(value: float) -> str:
    """Write bytes a second.

    >>> format_bandwidth(25e6)
    '25.0 MB/s'
    """
    from jaxdist.core.text.formatting import format_size

    return format_size(value, "B/s")


def format_switch(switch: AlgorithmSwitch) -> str:
    """Say between which sizes an algorithm changes, and what there is on each side."""
    from jaxdist.core.text.formatting import format_percent

    return (
        f"  switch   {switch.program} between {switch.below:,} B and {switch.above:,} "
        "B: "
        f"{format_microseconds(switch.small.alpha)} and "
        f"{format_bandwidth(switch.small.bandwidth)} below, "
        f"{format_microseconds(switch.large.alpha)} and "
        f"{format_bandwidth(switch.large.bandwidth)} above; "
        f"{format_percent(switch.spread)} from two lines"
    )
