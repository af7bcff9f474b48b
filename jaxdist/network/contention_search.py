"""Search for the schedule and the placement with the least contention.

Contention comes from partners that share links in the same step, so it can be reduced
without other cables: by another order of partners, by stripes that use all dims at
once, by two levels, or by placing ranks elsewhere. All of these are tried, and then
swaps of two ranks' devices, as long as they help.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.core.errors import BadInput
from jaxdist.network.placement import parse_placement
from jaxdist.network.routes import IntArray
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import (
    CollectiveSimulation,
    NetworkModel,
    simulate_collective,
    step_key,
)

FLAT_SCHEDULES: Final = (
    "halving_doubling",
    "halving_doubling_far",
    "striped_halving_doubling",
    "swing",
    "ring",
    "bucket_2d",
    "double_binary_tree",
    "recursive_doubling",
)
"""Schedules of one level."""
PLACEMENTS: Final = ("in_order", "dealt", "reversed_bits")
_MAX_MESSAGES: Final = 1 << 23
"""Messages of different steps above which a schedule is not tried: it takes long."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ContentionCandidate:
    """A schedule and a placement that were tried."""

    schedule: CollectiveSchedule
    """The schedule."""
    per_host: int | None
    """Ranks of a host, where the schedule has two levels."""
    placement: str
    """Name of the placement."""
    devices: IntArray
    """`[P]`, the device of each rank."""
    simulation: CollectiveSimulation
    """Its time."""


def minimize_contention(
    ranks: int, size: float, network: NetworkModel, swaps: int = 0, seed: int = 0
) -> list[ContentionCandidate]:
    """Return the candidates that were tried, best first.

    Args:
        ranks: P.
        size: bytes of the array.
        network: has P devices at least.
        swaps: swaps of two ranks that are tried on the best candidate.
        seed: of the swaps.

    >>> from jaxdist.network.topologies.registry import make_topology
    >>> network = NetworkModel(topology=make_topology("dln", 16, {}))
    >>> found = minimize_contention(16, 2.0**26, network)
    >>> found[0].simulation.phi_max
    1
    """
    # Two levels by what the network has: hosts, or groups below one switch.
    hosts = {network.topology.per_host, network.topology.per_switch, None}
    widths = [w for w in hosts if w is None or (1 < w < ranks and ranks % w == 0)]
    two = [(n, w) for n in ("two_level_ring", "two_level_halving") for w in widths]
    tried = []
    for name, per_host in [*((name, None) for name in FLAT_SCHEDULES), *two]:
        try:
            schedule = schedule_by_name(name, ranks, per_host)
        except BadInput:  # not defined for so many ranks
            continue
        # Equal steps are simulated once, so they count once.
        unlike = {step_key(step): len(step.transfers) for step in schedule.steps}
        if sum(unlike.values()) > _MAX_MESSAGES:
            continue
        for place in PLACEMENTS:
            devices = parse_placement(place, ranks, network.topology)
            tried.append(
                ContentionCandidate(
                    schedule=schedule,
                    per_host=per_host,
                    placement=place,
                    devices=devices,
                    simulation=simulate_collective(schedule, size, network, devices),
                )
            )
    tried.sort(key=lambda one: one.simulation.seconds)

    # Local search: exchange the devices of two ranks, and keep what takes less time.
    best, rng = tried[0], np.random.default_rng(seed)
    for _ in range(swaps):
        devices = best.devices.copy()
        one, other = rng.choice(devices.size, 2, replace=False)
        devices[[one, other]] = devices[[other, one]]
        found = simulate_collective(best.schedule, size, network, devices)
        if found.seconds < best.simulation.seconds:
            best = replace(best, placement="swapped", devices=devices, simulation=found)
    return tried if best is tried[0] else [best, *tried]
