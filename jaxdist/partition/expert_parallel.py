"""Expert parallelism: samples are split, experts as well, and tokens go to theirs.

Rule: the experts of every mixture divide over the `expert` axis, whose devices have
samples of their own as those of `data`; weights of experts are split along it, and all
others are whole there. With the tensor axis each expert's hidden features divide as
well (roles `experts` and `combine`), and its devices send the same slots. Traffic a
step of one mixture (S bytes of a device's slots, which are as many as its samples x
experts x slots of each; k of E experts a token):

    tokens    forward an all-to-all of S to the experts and one back, backward the same
              for gradients; without a capacity one of the numbers of taken slots
    balance   an all-reduce of E counts over all devices that share a batch
    slots     with a capacity beside context, an all-gather of 2 k E counts a sample of
              each device along it: choices of each chunk of the tokens, by rank

Without a capacity an expert has a slot for every token of a sample, since each may
choose it: products are of rows that are there, but S is E / k times what is needed.
Source: Lepikhin et al. 2020, arXiv:2006.16668, section 3.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from flax import nnx

from jaxdist.core.axes import BATCH_AXES, CONTEXT_AXIS, EXPERT_AXIS
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers.experts import Experts, training_slots
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition.spatial_parallel import block_shape
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.profile.layer_calls import LayerCall, calls_of_type

EXPERT_TERM: Final = "expert tokens"
"""The name of what goes to experts and back, in reports."""
BALANCE_TERM: Final = "expert balance"
"""That of how often each expert was chosen."""
SLOTS_TERM: Final = "expert slots"
"""That of the same in each chunk of a sample, by which its slots are shared out."""

_SORTING_FLOPS: Final = 30
"""About as many operations find the place of a row."""
_SOFTMAX_FLOPS: Final = 12
"""About as many make a share of a score, and its gradient."""


def expert_layers(network: nnx.Module) -> dict[str, Experts]:
    """Return the mixtures of experts of a network, by path."""
    return {
        ".".join(map(str, path)): module
        for path, module in nnx.iter_modules(network)
        if isinstance(module, Experts)
    }


def check_experts(plan: Plan, layers: Mapping[str, Experts]) -> None:
    """Refuse a split that a network's mixtures of experts do not take.

    Args:
        plan: the layout.
        layers: the mixtures, by path.

    Raises:
        BadInput: no experts, or experts that do not divide.
    """
    devices, mesh = plan.mesh.expert, plan.mesh
    size = f"plan.mesh.expert = {devices}"
    elsewhere = f"plan.mesh.data={mesh.data * devices} plan.mesh.expert=1"
    if devices > 1 and not layers:
        raise BadInput(
            "the network has no experts",
            rule="plan.mesh.expert is for networks with jaxdist.layers.Experts: "
            "mixtral, and llama with model.experts",
            values=f"{size}; no layer is one",
            remedy=elsewhere,
        )
    for path, layer in layers.items():
        count = layer.router.shape[-1]
        if count % devices:
            works = max(n for n in range(1, devices) if count % n == 0)
            raise BadInput(
                f"{count} experts do not divide over {devices} devices",
                rule="model.experts is a multiple of plan.mesh.expert",
                values=f"{path} has {count} experts, {size}",
                remedy=(
                    f"plan.mesh.expert={works}",
                    f"model.experts={-(-count // devices) * devices}",
                ),
            )


def expert_traffic(
    plan: Plan, calls: Sequence[LayerCall]
) -> Iterator[PlannedCollective]:
    """Yield what mixtures of experts exchange and count, forward and backward."""
    axes = nontrivial_axes(plan, (EXPERT_AXIS,))
    shared = nontrivial_axes(plan, (*BATCH_AXES, CONTEXT_AXIS))
    for call in calls_of_type(calls, Experts):
        layer, count = call.layer, call.layer.router.shape[-1]
        samples, tokens, features = block_shape(plan, call.out_shape)
        slots, has_capacity = _device_slots(call, tokens)
        passes = 2 + call.output_gradient * (1 + call.input_gradient)
        width = np.dtype(call.dtype).itemsize
        each = samples * count * slots * features * width
        counts = samples * count * np.dtype(np.int32).itemsize
        if axes:
            yield PlannedCollective(
                what=EXPERT_TERM,
                kind="all-to-all",
                axes=axes,
                payload=passes * each + (0 if has_capacity else counts),
                layer=call.path,
                arrays=passes + (not has_capacity),
            )
        if has_capacity and plan.mesh.context > 1:
            yield PlannedCollective(
                what=SLOTS_TERM,
                kind="all-gather",
                axes=(CONTEXT_AXIS,),
                payload=plan.mesh.context * 2 * layer.routing.chosen * counts,
                layer=call.path,
            )
        if shared and layer.routing.balance_weight:
            yield PlannedCollective(
                what=BALANCE_TERM,
                kind="all-reduce",
                axes=shared,
                payload=count * np.dtype(np.int32).itemsize,
                layer=call.path,
            )


def _device_slots(call: LayerCall, tokens: int) -> tuple[int, bool]:
    """Return the slots of an expert in a device's part of a sample.

    And whether a capacity says how many the whole sample has.

    Args:
        call: of the layer, on whole samples.
        tokens: of the part.
    """
    slots = training_slots(call.layer, call.out_shape[1])
    # One of the devices along context may have all of them.
    return min(slots or tokens, tokens), slots > 0


def expert_flops(plan: Plan, call: LayerCall, roles: Roles) -> int:
    """Return the FLOPs of one device in a mixture, forward and backward.

    Args:
        plan: the layout.
        call: of an `Experts` layer.
        roles: what layers do with the tensor axis.
    """
    layer: Experts = call.layer
    samples, tokens, features = block_shape(plan, call.out_shape)
    count, _, hidden = layer.gate.shape
    hidden //= plan.mesh.tensor if roles.get(call.path) in ("experts", "combine") else 1
    (slots, has_capacity), devices = _device_slots(call, tokens), plan.mesh.expert
    scores, choices = (samples * tokens * n for n in (count, layer.routing.chosen))
    if has_capacity:
        rows = samples * count * slots
    else:
        # As many as there can be, which without the axis is as many as there are.
        rows = samples * devices * tokens * min(layer.routing.chosen, count // devices)
    passes = 1 + call.output_gradient * (call.input_gradient + call.weight_gradient)
    # Scores, three products of each row, and the weighted sum of a token's results.
    total = passes * 2 * features * (scores + 3 * rows * hidden + choices)
    # silu(gate) * up, and its gradient.
    total += rows * hidden * (5 + 7 * call.output_gradient) + _SOFTMAX_FLOPS * scores
    # Rows are moved to slots and back, and where slots travel without a capacity once
    # more, to rows without gaps and back. Each is masked, and its place is looked for.
    has_slots = has_capacity or devices > 1
    places = samples * count * slots if has_slots else choices
    moves = 1 + (devices > 1 and not has_capacity)
    masked = (1 + call.output_gradient) * (places + choices) * features
    return total + moves * (masked + _SORTING_FLOPS * places)
