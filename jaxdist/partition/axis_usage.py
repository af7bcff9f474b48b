"""Axis usage: an axis that splits nothing would only repeat the same work along it."""

from collections.abc import Sequence

from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan


def check_axis_usage(plan: Plan, input_axes: Sequence[str | None]) -> None:
    """Refuse an axis larger than one that splits nothing.

    Args:
        plan: the layout.
        input_axes: axis of each dim of the network's input, None where it stays whole.

    Raises:
        BadInput: naming the axis and what it would have done.
    """
    # Every network can use the first three; whether its weights divide is checked with
    # the weights.
    used = ["data", "fsdp", "tensor", *filter(None, input_axes)]
    used += ["replica"] * (plan.replicas > 1) + ["pipe"] * (plan.stages > 1)
    for axis, size in plan.mesh.items():
        if size > 1 and axis not in used and axis not in plan.replicated_axes:
            raise BadInput(
                f"nothing is split along {axis}",
                rule="a mesh axis larger than one splits samples, images or weights",
                values=f"plan.mesh.{axis} = {size}; "
                f"this network can use {', '.join(used)}",
                remedy=(
                    f"plan.mesh.data={plan.mesh.data * size} plan.mesh.{axis}=1",
                    *["plan.outer.sync_interval=50"] * (axis == "replica"),
                    f"plan.replicated_axes={axis} repeats the same work along it on "
                    "purpose",
                ),
            )
        # Idle devices would be given parts of the batch or of images all the same.
        if axis in plan.replicated_axes and axis in (*BATCH_AXES, *SPATIAL_AXES):
            raise BadInput(
                f"{axis} cannot be idle",
                rule=f"only axes that split nothing are idle; {axis} splits its input",
                values=f"plan.replicated_axes = {','.join(plan.replicated_axes)}",
                remedy=f"plan.mesh.{axis}=1, or plan.replicated_axes without {axis}",
            )
