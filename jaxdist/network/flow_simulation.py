"""Fluid: when messages that start at given times arrive, if bytes flow like water.

Between two events, a message that starts and one that ends, all rates stay as they are;
at an event they are shared anew. A message starts after the latency of its way.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.network.bandwidth_sharing import LinkDemand, flow_rates
from jaxdist.network.routes import FloatArray

TIME_TOLERANCE_S: Final = 1e-12
"""Seconds: ends that are nearer to each other are one event."""


@dataclass(eq=False)
class FlowSimulation:
    """Messages on their way, moved on from event to event.

    Args:
        demand: F messages on L links.
        capacity: `[L]`, bytes a second.
        start: `[F]`, seconds at which bytes begin to flow.
        size: `[F]`, bytes.
    """

    demand: LinkDemand
    capacity: FloatArray
    start: FloatArray
    size: FloatArray
    now: float = 0.0

    def __post_init__(self) -> None:
        self.remaining_bytes = self.size.astype(float)
        self.arrival_s = np.full(self.remaining_bytes.size, np.inf)

    @property
    def is_finished(self) -> bool:
        """Whether all have arrived."""
        return bool(np.isfinite(self.arrival_s).all())

    def step(self) -> None:
        """Go on to the next event."""
        waits = np.isinf(self.arrival_s)
        running = waits & (self.start <= self.now + TIME_TOLERANCE_S)
        later = self.start[waits & ~running]
        following = float(later.min()) if later.size else np.inf
        ids = np.flatnonzero(running)
        if not ids.size:
            self.now = following
            return
        rate = flow_rates(self.demand.subset(running), self.capacity)
        needs = self.remaining_bytes[ids] / rate
        passed = min(float(needs.min()), following - self.now)
        self.remaining_bytes[ids] -= rate * passed
        self.now += passed
        self.arrival_s[ids[needs <= passed + TIME_TOLERANCE_S]] = self.now


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
    stream = FlowSimulation(demand, capacity, start, size)
    while not stream.is_finished:
        stream.step()
    return stream.arrival_s
