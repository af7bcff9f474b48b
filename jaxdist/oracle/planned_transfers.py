"""The arrays of a ledger's rows, each moved once: what a trace has a node for."""

import itertools
from dataclasses import dataclass
from typing import Final

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.partition.traffic import PlannedCollective

EXCHANGE_LAYER: Final = "between_stages"
"""Where the ledger has what stages send to each other."""


@dataclass(frozen=True, kw_only=True)
class PlannedTransfer:
    """One array of a row of the ledger, that is moved once."""

    row: PlannedCollective
    """The row."""
    size: int
    """Bytes of its result on a device."""
    reverse: bool = False
    """Whether a permutation goes to the neighbour before."""


def split_row(row: PlannedCollective, devices: int) -> list[PlannedTransfer]:
    """Return the arrays of a row of the ledger, as equal as whole bytes can be.

    Args:
        row: the row.
        devices: that take part in each collective.
    """
    # The result of an all-gather has an equal part of each device.
    unit = devices if row.kind == "all-gather" and row.payload % devices == 0 else 1
    units, count = row.payload // unit, max(1, row.arrays)
    ends = [unit * (units * (place + 1) // count) for place in range(count)]
    # Halos are fetched from both sides, keys and values go round one way, and what is
    # sent to stages before them are gradients.
    halos = row.layer != EXCHANGE_LAYER and row.axes[0] in SPATIAL_AXES
    gradients = row.layer == EXCHANGE_LAYER and row.what == "gradients"
    return [
        PlannedTransfer(
            row=row,
            size=end - start,
            reverse=gradients or (halos and place % 2 == 1),
        )
        for place, (start, end) in enumerate(itertools.pairwise((0, *ends)))
    ]
