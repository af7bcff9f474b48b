"""Extent of a spatial split: which calls of a network the spatial axes split.

All of them, or those before the gather that the plan puts into the network. Behind it
the plan is one without spatial axes: every device has whole images. Devices along those
axes do the same there, or they have samples of their own, as along the data axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Exchange, Gather
from jaxdist.layers.halo import Split
from jaxdist.profile.layer_calls import LayerCall

LayerCalls = tuple[LayerCall, ...]


def split_at_gather(
    calls: Sequence[LayerCall], gather_block: str
) -> tuple[LayerCalls, LayerCalls]:
    """Divide a network's calls where images are gathered.

    Args:
        calls: in order.
        gather_block: block before which they are; empty where they are not.

    Returns:
        The calls as far as images are split, the gather among them, and those behind.

    Raises:
        BadInput: not one gather is called, but none or several; or a layer is called
            on both sides of it.
    """
    # The gather itself still reads blocks: it belongs to the first part.
    ends = [i for i, call in enumerate(calls, 1) if isinstance(call.layer, Gather)]
    end = ends[0] if ends else len(calls)
    split, whole = tuple(calls[:end]), tuple(calls[end:])
    both = {call.path for call in split} & {call.path for call in whole}
    rule = values = ""
    if len(ends) != bool(gather_block):
        rule, values = "a block that is called once", f"{len(ends)} calls of it"
    elif both:
        # A layer is bound to one split of its images, whichever call it is.
        rule, values = "no layer on both sides of it", f"{min(both)} is on both"
    if rule:
        raise BadInput(
            f"the split of images cannot end at {gather_block}",
            rule=f"plan.spatial_end names {rule}",
            values=values,
            remedy="plan.spatial_end= splits images as far as they go",
        )
    return split, whole


@dataclass(frozen=True, kw_only=True)
class CallRange:
    """Consecutive calls whose arrays are split in the same way."""

    calls: LayerCalls
    """In order."""
    plan: Plan
    """How their arrays are split."""
    norm_plan: Plan
    """Which devices share batch statistics."""


def call_ranges(plan: Plan, calls: Sequence[LayerCall]) -> tuple[CallRange, CallRange]:
    """Return the calls on split images, and those behind the gather.

    Args:
        plan: the layout.
        calls: in order.
    """
    split, whole = split_at_gather(calls, plan.spatial_end)
    sizes = dict(plan.mesh.items()) | dict.fromkeys(SPATIAL_AXES, 1)
    before = CallRange(calls=split, plan=plan, norm_plan=plan)
    if plan.spatial_end_mode == "samples":
        # Samples are spread over the spatial axes as over data. Statistics are still
        # averaged over all these axes: the original plan says so for whole images too.
        sizes["data"] = plan.mesh.size("data", *SPATIAL_AXES)
        spread = plan.on(MeshShape(**sizes))
        return before, CallRange(calls=whole, plan=spread, norm_plan=plan)
    same = plan.on(MeshShape(**sizes))
    return before, CallRange(calls=whole, plan=same, norm_plan=same)


def gather_layer_class(plan: Plan) -> type[Gather]:
    """Return the layer that a plan puts where its split of images ends."""
    return Exchange if plan.spatial_end_mode == "samples" else Gather


def split_after_gather(plan: Plan) -> Split:
    """Return how the images of layers lie behind the gather."""
    exchanged = plan.spatial_end_mode == "samples"
    return Split(axes=(), samples=SPATIAL_AXES if exchanged else ())
