"""Context parallelism: tokens of a sample are split, and attention reads across.

Rule: a network says which layers its attention reads (`AttentionInputs`), the tokens
of a sample divide into 2 chunks a device, and with plan.context=all_to_all the heads
divide as well. Traffic a step of one attention (n devices along context; Q, K, V bytes
of queries, keys and values of a device's tokens; W, keys and values in the dtype of
sums, at least float32):

    all_gather   forward and backward an all-gather of n (K + V), backward a
                 reduce-scatter of W
    ring         forward and backward n - 1 permutes of K + V, backward n of W
    all_to_all   forward and backward all-to-alls of Q, K, V and the result, 2 Q + K + V

Sources: `jaxdist.layers.context_attention`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from flax import nnx

from jaxdist.core.axes import CONTEXT_AXIS
from jaxdist.core.block_protocol import AttentionInputs
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers.tensor_role import TENSOR_AXIS, Roles
from jaxdist.partition.spatial_parallel import block_shape
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.profile.layer_calls import LayerCall

ATTENTION_TERM: Final = "attention"
"""The name of what attention moves, in reports."""
ATTENTION_GRADIENTS: Final = "attention gradients"
"""That of gradients of keys and values, which go back to their devices."""


def attention_inputs(network: nnx.Module) -> tuple[AttentionInputs, ...]:
    """List what the attention of a network reads, in the order of its modules."""
    declared = (
        (".".join(map(str, path)), getattr(module, "attends", None))
        for path, module in nnx.iter_modules(network)
    )
    return tuple(
        own.under(path) for path, own in declared if isinstance(own, AttentionInputs)
    )


def check_context(
    plan: Plan,
    calls: Sequence[LayerCall],
    roles: Roles,
    attention: Sequence[AttentionInputs],
    tokens: int,
) -> None:
    """Refuse a split of tokens that a network or its samples do not take.

    Args:
        plan: the layout.
        calls: of the network's layers.
        roles: what layers do with the tensor axis.
        attention: what its attention reads.
        tokens: of a sample.

    Raises:
        BadInput: no attention that says what it reads, tokens or heads that do not
            divide, or a ring between stages.
    """
    devices = plan.mesh.context
    if devices == 1:
        return
    size = f"plan.mesh.context = {devices}"
    if not attention:
        raise BadInput(
            "the network has no causal attention that reads tokens of other devices",
            rule="plan.mesh.context is for networks whose attention declares its "
            "layers, attends = AttentionInputs(...), as gpt2_small and llama do",
            values=f"{size}; no module declares them",
            remedy=f"plan.mesh.data={plan.mesh.data * devices} plan.mesh.context=1",
        )
    # Two chunks a device; between tensor-parallel pairs a device has some of these.
    unit, rule = 2 * devices, "data.context is a multiple of 2 x plan.mesh.context"
    if plan.mesh.tensor > 1 and plan.tensor_strategy == "sequence":
        unit = devices * math.lcm(2, plan.mesh.tensor)
        rule = (
            "with plan.tensor_strategy=sequence a device's tokens, of which there are "
            "an even number, divide over plan.mesh.tensor"
        )
    if tokens % unit:
        near = sorted({tokens // unit * unit, -(-tokens // unit) * unit} - {0})
        raise BadInput(
            f"{tokens} tokens do not divide over {devices} devices",
            rule=rule,
            values=f"data.context = {tokens}, {size}"
            + f", plan.mesh.tensor = {plan.mesh.tensor}" * (unit != 2 * devices),
            remedy=" or ".join(f"data.context={count}" for count in near),
        )
    if plan.context == "ring" and plan.stages > 1:
        raise BadInput(
            "keys and values cannot go round inside of a stage",
            rule="a permute needs all devices at the same time, and stages do "
            "different work",
            values=f"plan.context = ring, plan.mesh.pipe = {plan.mesh.pipe}",
            remedy=("plan.context=all_gather", "plan.context=all_to_all"),
        )
    if plan.context == "all_to_all":
        _check_heads(plan, calls, roles, attention)


def _check_heads(
    plan: Plan,
    calls: Sequence[LayerCall],
    roles: Roles,
    attention: Sequence[AttentionInputs],
) -> None:
    by_path, devices = {call.path: call for call in calls}, plan.mesh.context
    for own in attention:
        for path in (own.query, own.key, own.value):
            if path not in by_path:
                continue
            # Queries may have more heads than keys and values, so each is checked by
            # itself.
            heads = _device_features(plan, by_path[path], roles) // own.features
            if heads % devices:
                split = roles.get(path) == "column"
                raise BadInput(
                    f"{path} has heads that do not divide over {devices} devices",
                    rule="with plan.context=all_to_all heads of queries, keys and "
                    "values divide over plan.mesh.context"
                    + " x plan.mesh.tensor"
                    * split,
                    values=f"{path} has {heads} heads"
                    + f" a device of plan.mesh.tensor = {plan.mesh.tensor}" * split
                    + f", plan.mesh.context = {devices}",
                    remedy=(
                        "plan.context=all_gather",
                        f"plan.mesh.context={math.gcd(heads, devices)}",
                    ),
                )


def context_traffic(
    plan: Plan,
    calls: Sequence[LayerCall],
    roles: Roles,
    attention: Sequence[AttentionInputs],
) -> Iterator[PlannedCollective]:
    """Yield what attention moves to read the tokens of other devices.

    Args:
        plan: the layout.
        calls: of the network's layers.
        roles: what layers do with the tensor axis.
        attention: what its attention reads.
    """
    axes = nontrivial_axes(plan, (CONTEXT_AXIS,))
    by_path: Mapping[str, LayerCall] = {call.path: call for call in calls}
    for own in attention if axes else ():
        if own.key not in by_path:  # of another stage
            continue
        query, key = by_path[own.query], by_path[own.key]
        # Keys and values are moved again in the backward pass: keeping those of all
        # devices would cost the memory that the split saves.
        passes = 1 + (query.output_gradient or key.output_gradient)
        devices, width = plan.mesh.context, np.dtype(key.dtype).itemsize
        # Numbers of the keys and values of a device's tokens; their gradients are
        # summed in at least float32, and there are none without a backward pass.
        pair = 2 * _device_numbers(plan, key, roles)
        summed = pair * accumulation_dtype(key.dtype).itemsize * (passes - 1)
        moved: tuple[tuple[str, int, int], ...]
        pulled: tuple[tuple[str, int, int], ...] = ()
        if plan.context == "all_gather":
            moved = (("all-gather", passes * devices * pair * width, passes),)
            pulled = (("reduce-scatter", summed, 1),)
        elif plan.context == "ring":
            # A device has its own already. Gradients go n hops: from their own device
            # on, once round and back.
            hops = passes * (devices - 1)
            moved = (("collective-permute", hops * pair * width, hops),)
            pulled = (("collective-permute", devices * summed, devices),)
        else:
            # Queries go out and results come back, in four exchanges a pass with keys
            # and values.
            both = 2 * _device_numbers(plan, query, roles)
            moved = (("all-to-all", passes * (both + pair) * width, 4 * passes),)
        for what, (kind, payload, arrays) in (
            *((ATTENTION_TERM, row) for row in moved),
            *((ATTENTION_GRADIENTS, row) for row in pulled),
        ):
            yield PlannedCollective(
                what=what,
                kind=kind,
                axes=axes,
                payload=payload,
                layer=own.key,
                arrays=arrays,
            )


def _device_features(plan: Plan, call: LayerCall, roles: Roles) -> int:
    """Return how many of a layer's features a device has: those of its heads."""
    # Other roles than that of a pair's first layer end in whole features.
    split = plan.mesh.size(TENSOR_AXIS) if roles.get(call.path) == "column" else 1
    return call.out_shape[-1] // split


def _device_numbers(plan: Plan, call: LayerCall, roles: Roles) -> int:
    """Return how many numbers of a layer's output a device has."""
    *outer, _ = block_shape(plan, call.out_shape)
    return math.prod(outer) * _device_features(plan, call, roles)
