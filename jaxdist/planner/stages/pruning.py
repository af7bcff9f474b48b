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
    places: CutPoints, tiers: Sequence[LinkLevel], form: CostConvention, bound: float
) -> NDArray[np.bool_]:
    """Return which places may be cut at.

    Args:
        places: any.
        tiers: devices, innermost first.
        form: what stages and cuts cost.
        bound: U, seconds of a plan that is known; infinite where none is.
    """
    if not math.isfinite(bound):
        return np.ones(len(places), bool)
    limit = bound * _SLACK
    devices = math.prod(tier.size for tier in tiers)
    before = np.ceil(places.seconds / limit)
    behind = np.ceil((places.seconds[-1] - places.seconds) / limit)
    copies = np.cumprod([1, *(tier.size for tier in reversed(tiers))])[-2::-1]
    fastest = min(
        float(form.cut(np.array(1.0), tier.size, tier.bandwidth)) / outside
        for tier, outside in zip(tiers, copies)
    )
    return (before + behind <= devices) & (places.crossing * fastest <= limit)
