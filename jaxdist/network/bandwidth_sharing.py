"""Max-min fair sharing: the rates of flows that meet on links.

With equal weights progressive filling is max-min fairness. With weights 1 / latency it
is what TCP does to flows of unlike round trips.

Source: Bertsekas and Gallager 1992, "Data Networks", section 6.5.2; Casanova and
Marchal 2002, "A network model for simulation of grid application", INRIA RR-4596
(weights by round trip).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.network.routes import FloatArray, IntArray

_TOLERANCE: Final = 1e-12
"""Levels that differ by less are one: they differ by rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkDemand:
    """The load of flows on links, crossing by crossing."""

    flow: IntArray
    """`[E]`, flow of each crossing, ascending; each flow has one at least."""
    link: IntArray
    """`[E]`, link of each crossing."""
    link_load: FloatArray
    """`[E]`, bytes that the link carries for a byte of the flow."""
    weight: FloatArray
    """`[F]`, weights by which links are shared."""
    max_rate: FloatArray
    """`[F]`, bytes a second that a flow may have at most."""

    def subset(self, running: NDArray[np.bool_]) -> "LinkDemand":
        """Return the demand of some of the flows, renumbered."""
        if running.all():
            return self
        kept = running[self.flow]
        place = np.cumsum(running) - 1
        return LinkDemand(
            flow=place[self.flow[kept]],
            link=self.link[kept],
            link_load=self.link_load[kept],
            weight=self.weight[running],
            max_rate=self.max_rate[running],
        )


def flow_rates(demand: LinkDemand, capacity: FloatArray) -> FloatArray:
    """Return the rate of each flow.

    Args:
        demand: F flows on L links.
        capacity: `[L]`, bytes a second.

    Returns:
        `[F]`, bytes a second.

    >>> both, flow = np.array([0, 0]), np.array([0, 1])
    >>> weight, most = np.array([1.0, 3.0]), np.full(2, np.inf)
    >>> limits = {"weight": weight, "max_rate": most}
    >>> asked = LinkDemand(flow=flow, link=both, link_load=np.ones(2), **limits)
    >>> flow_rates(asked, np.array([8.0]))
    array([2., 6.])
    """
    rate = np.zeros(demand.weight.size)
    left = capacity.astype(float)
    flow, link, use = demand.flow, demand.link, demand.link_load
    own = demand.max_rate / demand.weight
    while flow.size:
        # All rates grow together, in proportion to their weights: the level, rate over
        # weight, at which each link is full; infinite where it is unused.
        total = np.bincount(link, use * demand.weight[flow], left.size)
        level = np.full(left.size, np.inf)
        np.divide(left, total, out=level, where=total > 0)
        # A flow stops at the first of its links that is full, or at its own limit.
        first = np.flatnonzero(np.diff(flow, prepend=-1))
        ids = flow[first]
        least = np.minimum.reduceat(level[link], first)
        stop = np.minimum(least, own[ids])
        row = np.repeat(np.arange(ids.size), np.diff(first, append=flow.size))
        # A link stops its flows as soon as none of them is stopped earlier elsewhere:
        # far links are not waited for, and the rates are the same.
        earlier = stop[row] < level[link] * (1 - _TOLERANCE)
        ready = np.bincount(link, earlier, left.size) == 0
        held = ready[link] & ~earlier
        done = (np.bincount(row, held, ids.size) > 0) | (own[ids] <= least)
        rate[ids[done]] = (stop * demand.weight[ids])[done]
        # What stopped flows use is taken off; the others grow on.
        gone = done[row]
        left -= np.bincount(link[gone], (use * rate[flow])[gone], left.size)
        np.maximum(left, 0, out=left)
        flow, link, use = flow[~gone], link[~gone], use[~gone]
    return rate
