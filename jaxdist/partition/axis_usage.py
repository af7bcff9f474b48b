"""Uses: what each axis of a plan splits; an axis without a use would repeat work."""

from collections.abc import Sequence
from typing import Final

from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan

UNIVERSAL_AXES: Final = ("data", "fsdp", "tensor")
"""Axes that every network can use; whether its weights divide is for them to say."""


def check_axis_usage(plan: Plan, input_axes: Sequence[str | None]) -> None:
    """Refuse an axis larger than one that splits nothing.

    Args:
        plan: the layout.
        input_axes: axis of each dim of the network's input, None where it stays whole.

    Raises:
        BadInput: naming the axis and what it would have done.
    """
    found = {"replica": plan.replicas > 1, "pipe": plan.stages > 1}
    used = (
        *UNIVERSAL_AXES,
        *filter(None, input_axes),
        *(a for a, use in found.items() if use),
    )
    for axis, size in plan.mesh.items():
        if size > 1 and axis not in used and axis not in plan.idle:
            raise BadInput(
                f"nothing is split along {axis}",
                rule="a mesh axis larger than one splits samples, images or weights",
                values=f"plan.mesh.{axis} = {size}; "
                f"this network can use {', '.join(used)}",
                remedy=(
                    f"plan.mesh.data={plan.mesh.data * size} plan.mesh.{axis}=1",
                    *["plan.outer.every=50"] * (axis == "replica"),
                    f"plan.idle={axis} repeats the same work along it on purpose",
                ),
            )
        if axis in plan.idle and axis in (*BATCH_AXES, *SPATIAL_AXES):
            raise BadInput(
                f"{axis} cannot be idle",
                rule=f"only axes that split nothing are idle; {axis} splits its input",
                values=f"plan.idle = {','.join(plan.idle)}",
                remedy=f"plan.mesh.{axis}=1, or plan.idle without {axis}",
            )
