"""Routes: which links the flows of a step cross, as two columns of numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Routes:
    """Every crossing of a link by a flow, flow by flow, in the order of the route."""

    flow: IntArray
    """`[E]`, the flow of each crossing, ascending."""
    link: IntArray
    """`[E]`, the link that it crosses."""
    num_flows: int
    """Number of flows F; each crosses a link at least."""

    def path_sum(self, values: FloatArray) -> FloatArray:
        """Sum a property of links over each flow's route.

        Args:
            values: `[L]`, of each link.

        Returns:
            `[F]`, of each flow.
        """
        return np.bincount(self.flow, values[self.link], self.num_flows).astype(float)

    def path_min(self, values: FloatArray) -> FloatArray:
        """Return the least of a property of links on each flow's route, `[F]`."""
        # Flows are in order, so each is one run of crossings.
        first = np.searchsorted(self.flow, np.arange(self.num_flows))
        return np.minimum.reduceat(values[self.link], first)


def routes_from_hops(hops: IntArray) -> Routes:
    """Return the routes of a table of links.

    Args:
        hops: `[F, H]`, links in the order of the route, -1 where there is none.

    >>> routes_from_hops(np.array([[4, -1], [2, 3]])).link
    array([4, 2, 3])
    """
    used = hops >= 0
    flow = np.repeat(np.arange(len(hops)), used.sum(axis=1))
    return Routes(flow=flow, link=hops[used], num_flows=len(hops))
