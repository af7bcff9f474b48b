"""Reach: which calls of a network the spatial axes of a plan split.

All of them, or those before the gather that the plan puts into the network. Behind it
the plan is one without spatial axes: every device has whole images, and all devices
along those axes do the same.
"""

from collections.abc import Sequence

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Gather
from jaxdist.profile.calls import Call

Calls = tuple[Call, ...]


def part(calls: Sequence[Call], until: str) -> tuple[Calls, Calls]:
    """Part a network's calls where images are gathered.

    Args:
        calls: in order.
        until: block before which they are; empty where they are not.

    Returns:
        The calls as far as images are split, the gather among them, and those behind.

    Raises:
        BadInput: not one gather is called, but none or several; or a layer is called
            on both sides of it.
    """
    ends = [i for i, call in enumerate(calls, 1) if isinstance(call.layer, Gather)]
    if len(ends) != bool(until):
        raise _refused(until, "a block that is called once", f"{len(ends)} calls of it")
    end = ends[0] if ends else len(calls)
    split, whole = tuple(calls[:end]), tuple(calls[end:])
    for path in {call.path for call in split} & {call.path for call in whole}:
        raise _refused(until, "no layer on both sides of it", f"{path} is on both")
    return split, whole


def ranges(plan: Plan, calls: Sequence[Call]) -> tuple[tuple[Plan, Calls], ...]:
    """Give each range of a network's calls the plan that holds there."""
    split, whole = part(calls, plan.spatial_until)
    sizes = dict(plan.mesh.items()) | dict.fromkeys(SPATIAL_AXES, 1)
    return (plan, split), (plan.on(MeshShape(**sizes)), whole)


def _refused(until: str, rule: str, values: str) -> BadInput:
    return BadInput(
        f"the split of images cannot end at {until}",
        rule=f"plan.spatial_until names {rule}",
        values=values,
        remedy="plan.spatial_until= splits images as far as they go",
    )
