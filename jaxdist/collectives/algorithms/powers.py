"""Algorithms that are defined for powers of two only, and what to do elsewhere."""

from jaxdist.collectives.algorithms.fold import power_below
from jaxdist.collectives.algorithms.steps import checked
from jaxdist.core.errors import BadInput


def needs_power(name: str, ranks: int) -> int:
    """Return the binary logarithm of a number of ranks.

    Raises:
        BadInput: the number is not a power of two.

    >>> needs_power("swing", 8)
    3
    """
    below = power_below(checked(ranks))
    if below != ranks:
        near = min(below, 2 * below, key=lambda power: abs(power - ranks))
        raise BadInput(
            f"{name} is not defined for {ranks} ranks",
            rule="the number of ranks is a power of two",
            values=f"ranks={ranks}",
            remedy=(f"{name}({near})", f"halving_doubling({ranks})"),
        )
    return ranks.bit_length() - 1
