"""Fluid flow simulation: when messages arrive that start at given times."""

from typing import Final

import numpy as np

from jaxdist.network.bandwidth_sharing import LinkDemand, flow_rates
from jaxdist.network.routes import FloatArray

TIME_TOLERANCE_S: Final = 1e-12
"""Seconds: ends that are nearer to each other are one event."""


def arrival_times(
    demand: LinkDemand, capacity: FloatArray, start: FloatArray, size: FloatArray
) -> FloatArray:
    """Return when each message has arrived.

    Args:
        demand: F messages on L links.
        capacity: `[L]`, bytes a second.
        start: `[F]`, seconds at which bytes begin to flow.
        size: `[F]`, bytes.

    Returns:
        `[F]`, seconds.

    Two messages of 8 B share 4 B/s; the second one starts when half of the first is
    through, so each waits for the other:

    >>> both, flow = np.array([0, 0]), np.array([0, 1])
    >>> limits = {"weight": np.ones(2), "max_rate": np.full(2, np.inf)}
    >>> asked = LinkDemand(flow=flow, link=both, link_load=np.ones(2), **limits)
    >>> start, size = np.array([0.0, 1.0]), np.array([8.0, 8.0])
    >>> arrival_times(asked, np.array([4.0]), start, size)
    array([3., 4.])
    """
    remaining = size.astype(float)
    arrival, now = np.full(remaining.size, np.inf), 0.0
    # Between two events, a message that starts and one that ends, all rates stay as
    # they are; at an event links are shared anew.
    while not np.isfinite(arrival).all():
        waits = np.isinf(arrival)
        running = waits & (start <= now + TIME_TOLERANCE_S)
        following = float(start[waits & ~running].min(initial=np.inf))
        ids = np.flatnonzero(running)
        if not ids.size:
            now = following
            continue
        rate = flow_rates(demand.subset(running), capacity)
        needs = remaining[ids] / rate
        passed = min(float(needs.min()), following - now)
        remaining[ids] -= rate * passed
        now += passed
        arrival[ids[needs <= passed + TIME_TOLERANCE_S]] = now
    return arrival
