"""Useful: which places may be in a plan that is faster than one that is known.

With U seconds known, a place is left out where no plan in U has a cut: the nodes before
it need C / U devices, those behind it theirs, and there are not as many; or its bytes
take longer than U on the fastest links, dealt out over as many copies as there may be.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.cut_points import CutPoints
from jaxdist.planner.stages.link_hierarchy import LinkLevel

_SLACK = 1 + 1e-9


def useful_cut_mask(
    cut_points: CutPoints,
    levels: Sequence[LinkLevel],
    cost_convention: CostConvention,
    bound: float,
) -> NDArray[np.bool_]:
    """Return which places may be cut at.

    Args:
        cut_points: any.
        levels: devices, innermost first.
        cost_convention: what stages and cuts cost.
        bound: U, seconds of a plan that is known; infinite where none is.
    """
    if not math.isfinite(bound):
        return np.ones(len(cut_points), bool)
    limit = bound * _SLACK
    devices = math.prod(tier.size for tier in levels)
    before = np.ceil(cut_points.seconds / limit)
    behind = np.ceil((cut_points.seconds[-1] - cut_points.seconds) / limit)
    copies = np.cumprod([1, *(tier.size for tier in reversed(levels))])[-2::-1]
    fastest = min(
        float(cost_convention.cut_seconds(np.array(1.0), tier.size, tier.bandwidth))
        / outside
        for tier, outside in zip(levels, copies)
    )
    return (before + behind <= devices) & (cut_points.crossing_bytes * fastest <= limit)
