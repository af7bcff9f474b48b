"""A number with its provenance: a figure of a machine, and its source."""

import math
from dataclasses import dataclass
from typing import Any, Final, Self

from jaxdist.core.errors import BadInput

PROVENANCE_KINDS: Final = (
    "datasheet",
    "published",
    "measured",
    "fitted",
    "given",
    "assumed",
)
"""What an origin begins with: of the maker, of a paper, of `calibrate`, of a fit to
measured rows, of the person who wrote the file, of nobody (a stated guess)."""


@dataclass(frozen=True)
class SourcedNumber:
    """A quantity in SI units (seconds, bytes, FLOPs, and these a second).

    >>> print(SourcedNumber(12.5e9, "datasheet: EDR InfiniBand"))
    1.25e+10 (datasheet: EDR InfiniBand)
    """

    value: float
    """In SI units, finite and not negative."""
    origin: str
    """One of `PROVENANCE_KINDS`, a colon, and where it stands or how it was found."""

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf:
            raise BadInput(
                "a machine has no negative or endless numbers",
                rule="every number of a cluster is 0 or above, and finite",
                values=f"{self.value:g} ({self.origin})",
                remedy="a number in SI units, or with its unit: 12.5 GB/s",
            )
        if self.origin.partition(":")[0] not in PROVENANCE_KINDS:
            raise BadInput(
                "a number does not say where it is from",
                rule=f"an origin begins with one of {', '.join(PROVENANCE_KINDS)}, "
                "and a colon",
                values=f"{self.value:g} ({self.origin or 'no origin'})",
                remedy=f"origin: 'given: {self.origin or 'by hand'}'",
            )

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return f"{self.value:g} ({self.origin})"

    def tree(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"value": self.value, "origin": self.origin}

    def times(self, factor: float, reason: str) -> Self:
        """Return the number scaled, and why it was.

        >>> SourcedNumber(10.0, "given: me").times(0.5, "two share it").origin
        'given: me; times 0.5: two share it'
        """
        origin = f"{self.origin}; times {factor:g}: {reason}"
        return type(self)(self.value * factor, origin)
