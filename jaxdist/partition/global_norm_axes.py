"""Norms of whole leaves: what an optimizer asks of devices that hold shards of one.

Traffic a step: an all-reduce of one number, float32 or wider, for each leaf whose
length is asked for, over the axes that split the leaf.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes

AxisTuple = tuple[str, ...]


def split_axes(leaf: LeafSharding) -> AxisTuple:
    """Name the axes that split a leaf, in the order of its dims.

    Not the pipe axis: along it are different leaves.
    """
    return tuple(axis for axis in leaf.spec() if axis not in (None, "pipe"))


def norm_traffic(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    norm_requests: Sequence[Sequence[bool]],
    global_norms: int = 0,
    updates: int = 1,
) -> Iterator[PlannedCollective]:
    """Yield the sums of squares that an optimizer asks for.

    Args:
        plan: the layout.
        leaves: all parameters.
        norm_requests: for each time that it asks, whether it does for each parameter.
        global_norms: how often it asks for their sum over all stages.
        updates: times that parameters move in a step.
    """
    sums: Counter[AxisTuple] = Counter()
    if plan.stages > 1:
        sums["pipe",] = global_norms * max(
            accumulation_dtype(leaf.dtype).itemsize for leaf in leaves
        )
    for wanted in norm_requests:
        for leaf, want in zip(leaves, wanted, strict=True):
            over = nontrivial_axes(plan, split_axes(leaf))
            sums[over] += accumulation_dtype(leaf.dtype).itemsize * want
    for axes, payload in sums.items():
        if axes:
            yield PlannedCollective(
                what="lengths",
                kind="all-reduce",
                axes=axes,
                payload=updates * payload,
                layer="whole_lengths",
            )
