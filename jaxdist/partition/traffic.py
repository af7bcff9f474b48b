"""Traffic: one kind of collective that one layer asks for, with its bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from jaxdist.core.axes import AXES
from jaxdist.core.plan import Plan

LOSS_LAYER: Final = "loss"
"""Asks for what devices add of a loss, behind all layers of a network."""

TrafficKey = tuple[str, tuple[str, ...]]
"""A kind of collective, as the compiler names it, and the axes it runs over."""


@dataclass(frozen=True, kw_only=True)
class PlannedCollective:
    """One row of a ledger."""

    what: str
    """What a person calls it: `halo`, `all-reduce`, `statistics`."""
    kind: str
    """Collective, as the compiler names it."""
    axes: tuple[str, ...]
    """Mesh axes larger than one it runs over, outermost first."""
    payload: int
    """Bytes of the results on one device in one step."""
    layer: str
    """Path of the layer that asks for it."""
    arrays: int = 1
    """Arrays that are moved one after another in one step."""
    packed: int = 0
    """Numbers that a lossy way packs on a device before it moves them."""


def nontrivial_axes(plan: Plan, axes: Iterable[str]) -> tuple[str, ...]:
    """Keep the axes larger than one, outermost first."""
    # Collectives over one device are none: XLA removes them.
    wanted = set(axes)
    return tuple(a for a in AXES if a in wanted and plan.mesh.size(a) > 1)
