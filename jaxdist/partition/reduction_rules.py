"""Reduction rules: what a plan holds to, so that gradients are summed as it says."""

import math
import warnings
from collections.abc import Sequence
from typing import Final

from jaxdist.collectives.compress.method import Axes
from jaxdist.collectives.via import set_up
from jaxdist.core.errors import BadInput, Remark
from jaxdist.core.plan import Plan
from jaxdist.partition.leaves import Leaf

AXIS: Final = "data"
"""Along which gradients are compressed."""
PLAIN: Final = ("exact", "auto")
"""Sums as the backend likes; auto is so until something was measured."""


def check(plan: Plan) -> None:
    """Refuse settings out of range."""
    asked = plan.reduce
    legal = {
        "momentum": 0 <= asked.momentum < 1 and (asked.feedback or not asked.momentum),
        "warm_up": asked.warm_up >= 0,
        "bucket_mib": asked.bucket_mib > 0,
        "dense_below": asked.dense_below >= 0,
    }
    for name, holds in legal.items():
        if not holds:
            raise BadInput(
                f"plan.reduce.{name} is out of range",
                rule="0 <= momentum < 1, and 0 without feedback; warm_up >= 0, "
                "bucket_mib > 0, dense_below >= 0",
                values=f"plan.reduce.{name} = {getattr(asked, name)}",
                remedy=f"plan.reduce.{name}={getattr(type(asked)(), name)}",
            )


def check_levels(plan: Plan, found: Sequence[Axes]) -> None:
    """Refuse a hierarchical sum over axes that are one level."""
    for axes in found:
        if len(axes) < 2:
            raise BadInput(
                "a hierarchical sum needs two levels",
                rule="gradients are summed over data and another axis inside it",
                values=f"plan.reduce.via = hierarchical, {plan.title} sums over "
                f"{', '.join(axes)} alone",
                remedy=(
                    "plan.reduce.via=top_k",
                    "or a second axis: plan.mesh.spatial_h=2",
                ),
            )


def check_shared(plan: Plan, leaves: Sequence[Leaf]) -> None:
    """Refuse what would round the parameters themselves, or fill the memory again."""
    asked, fsdp = plan.reduce, plan.mesh.fsdp
    if asked.gather != "exact" and plan.zero != 3:
        raise BadInput(
            "parameters would be rounded at every step",
            rule="parameters travel in fewer bits where whole ones are kept in shards, "
            "with plan.zero=3",
            values=f"plan.reduce.gather = {asked.gather}, plan.zero = {plan.zero}",
            remedy=("plan.zero=3", "or plan.reduce.gather=exact"),
        )
    for name in ("scatter", "gather"):
        if getattr(asked, name) != "exact" and fsdp == 1:
            warnings.warn(
                f"plan.reduce.{name} = {getattr(asked, name)} does nothing: "
                "plan.mesh.fsdp = 1",
                Remark,
                stacklevel=3,
            )
    lossy = asked.via not in PLAIN and not set_up(asked).lossless
    if lossy and asked.feedback and fsdp > 1 and plan.mesh.size(AXIS) == 1:
        numbers = sum(math.prod(leaf.shape) for leaf in leaves)
        raise BadInput(
            f"{asked.via} along fsdp would keep what it does not send whole",
            rule="what is left is as large as the gradient that is packed: a shard "
            "along data, all parameters along fsdp",
            values=f"plan.reduce.via = {asked.via}, {plan.title}: {4 * numbers:,} B "
            f"more a device, where fsdp leaves it {4 * numbers // fsdp:,} B of "
            "parameters",
            remedy=(
                "plan.reduce.via=exact plan.reduce.scatter=int8",
                "or a data axis beside fsdp: plan.mesh.data=2",
            ),
        )
