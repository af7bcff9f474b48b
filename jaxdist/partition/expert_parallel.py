"""Expert parallelism: samples are split, experts as well, and tokens go to theirs.

Rule: the experts of every mixture divide over the `expert` axis, whose devices have
samples of their own as those of `data`; weights of experts are split along it, and all
others are whole there. With the tensor axis each expert's hidden features divide as
well (role `experts`). Traffic a step of one mixture (S bytes of a device's slots, which
are as many as its samples x experts x slots of each; k of E experts a token):

    tokens    forward an all-to-all of S to the experts and one back, backward the same
              for gradients; without a capacity one of the numbers of taken slots
    balance   an all-reduce of E counts over all devices that share a batch

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
        BadInput: no experts, experts that do not divide, or another split that experts
            are not taken along yet.
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
        if layer.routing.capacity_factor is not None and mesh.context > 1:
            raise BadInput(
                "slots of a sample are not counted over its devices",
                rule="with model.capacity_factor a device has the whole tokens of a "
                "sample",
                values=f"model.capacity_factor = {layer.routing.capacity_factor}, "
                f"plan.mesh.context = {mesh.context}",
                remedy=("plan.mesh.context=1", "model.capacity_factor=None"),
            )
    if layers and mesh.tensor > 1 and plan.tensor_strategy == "sequence":
        raise BadInput(
            "experts do not take tokens that are split between layers",
            rule="plan.tensor_strategy=sequence is for networks without experts",
            values=f"plan.tensor_strategy = sequence, {next(iter(layers))} has experts",
            remedy="plan.tensor_strategy=pairs",
        )
    others = {"pipe": mesh.pipe, "context": mesh.context, "replica": mesh.replica}
    for axis, count in others.items() if devices > 1 else ():
        if count > 1 and axis not in plan.replicated_axes:
            raise BadInput(
                f"experts are not split beside {axis}",
                rule="plan.mesh.expert goes with data, fsdp and tensor",
                values=f"{size}, plan.mesh.{axis} = {count}",
                remedy=(elsewhere, f"plan.mesh.{axis}=1"),
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
        slots = training_slots(layer, tokens)
        passes = 2 + call.output_gradient * (1 + call.input_gradient)
        width = np.dtype(call.dtype).itemsize
        each = samples * count * (slots or tokens) * features * width
        counts = 0 if slots else samples * count * np.dtype(np.int32).itemsize
        if axes:
            yield PlannedCollective(
                what=EXPERT_TERM,
                kind="all-to-all",
                axes=axes,
                payload=passes * each + counts,
                layer=call.path,
                arrays=passes + (not slots),
            )
        if shared and layer.routing.balance_weight:
            yield PlannedCollective(
                what=BALANCE_TERM,
                kind="all-reduce",
                axes=shared,
                payload=count * np.dtype(np.int32).itemsize,
                layer=call.path,
            )


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
    hidden //= plan.mesh.tensor if roles.get(call.path) == "experts" else 1
    slots, devices = training_slots(layer, tokens), plan.mesh.expert
    scores, choices = (samples * tokens * n for n in (count, layer.routing.chosen))
    if slots:
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
    has_slots = slots or devices > 1
    places = samples * count * (slots or tokens) if has_slots else choices
    moves = 1 + (devices > 1 and not slots)
    masked = (1 + call.output_gradient) * (places + choices) * features
    return total + moves * (masked + _SORTING_FLOPS * places)
