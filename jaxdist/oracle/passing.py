"""Passing on: what a device really sends of that which stages hand to each other.

Every device takes part in every permutation along the pipe axis, but the last stage has
no activations to send on, and the first no gradients to send back. Both go over a link
at the same time, in opposite directions, so their seconds do not add up.
"""

from dataclasses import replace
from typing import Final

from jaxdist.core.plan import Plan
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.places import places_of

_ON: Final = "activations"
_BACK: Final = "gradients"
_PIPE: Final = ("pipe",)


def sending(ledger: Ledger, plan: Plan, device: int) -> Ledger:
    """Return a device's ledger without the bytes that it only receives.

    Args:
        ledger: of the device.
        plan: the layout.
        device: its place along the pipe axis.
    """
    if plan.stages == 1:
        return ledger
    places = places_of(plan)
    own = places.stages_of(device)
    silent = {
        _ON: all(stage == places.stages - 1 for stage in own),
        _BACK: all(stage == 0 for stage in own),
    }
    rows = tuple(
        replace(row, payload=0)
        if row.axes == _PIPE and silent.get(row.what, False)
        else row
        for row in ledger.rows
    )
    return replace(ledger, rows=rows)
