"""Tensor parallelism: the strategies that split weights, by name, and their traffic.

A strategy gives every layer a role (`jaxdist.layers.tensor_role`); what moves follows
from the role alone. For an output y of one device, forward and backward:

    filter       all-gather of y         reduce-scatter of its gradient
    channel      all-reduce of y         all-reduce of its gradient
    row          all-reduce of y         all-reduce of its gradient
    vocabulary   all-reduce of y         all-reduce of its gradient
    logits       all-reduce of a row's largest and of two sums, of these two's gradients
    scatter      reduce-scatter of y     all-gather of its gradient
    lookup       reduce-scatter of y     all-gather of its gradient
    gather       all-gather of y         reduce-scatter of its gradient
    column, inner, own, whole layers     nothing
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from flax import nnx

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import Gather
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles, role_key
from jaxdist.partition import (
    column_parallel,
    megatron_pairs,
    row_parallel,
    sequence_parallel,
)
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.partition.weights import ShardableLayer, shardable_layers
from jaxdist.profile.layer_calls import LayerCall

_TERM_NAMES: Final = MappingProxyType(
    {
        "filter": "filters",
        "channel": "channels",
        "row": "pairs",
        "vocabulary": "vocabulary",
        "logits": "vocabulary",
        "scatter": "pairs",
        "lookup": "vocabulary",
        "gather": "tokens",
    }
)
"""What a person calls the traffic of a role."""


class TensorStrategy(Protocol):
    """Gives each layer of a network its role."""

    def __call__(
        self, shardable: Sequence[ShardableLayer], network: nnx.Module, devices: int
    ) -> Roles:
        """Return the roles, or raise `BadInput`."""


TENSOR_STRATEGIES: Final[Mapping[str, TensorStrategy]] = MappingProxyType(
    {
        "pairs": megatron_pairs.megatron_roles,
        "filter": column_parallel.column_parallel_roles,
        "channel": row_parallel.row_parallel_roles,
        "sequence": sequence_parallel.sequence_parallel_roles,
    }
)


def assign_roles(plan: Plan, calls: Sequence[LayerCall], network: nnx.Module) -> Roles:
    """Say what each layer does with the tensor axis of a plan.

    Raises:
        BadInput: a layer that the plan's strategy cannot split, or nothing to split.
    """
    devices = plan.mesh.tensor
    if devices == 1 or TENSOR_AXIS in plan.idle:
        return {}
    weights = shardable_layers(calls)
    given = TENSOR_STRATEGIES[plan.weights](weights, network, devices)
    if not given:
        raise BadInput(
            "nothing is split along tensor",
            rule="a mesh axis larger than one splits samples, images or weights",
            values=f"plan.mesh.tensor = {devices}, plan.weights = {plan.weights}; "
            f"none of {len(weights)} layers of jaxdist.layers divides",
            remedy=f"plan.mesh.data={plan.mesh.data * devices} plan.mesh.tensor=1",
        )
    return {**given, **dict.fromkeys(_inner_gathers(calls, given), "inner")}


def _inner_gathers(calls: Sequence[LayerCall], roles: Roles) -> Iterator[str]:
    """Yield the gathers between the layers of a pair: images of a device's features."""
    last: Role | None = None
    for call in calls:
        if isinstance(call.layer, Gather) and last in ("column", "inner"):
            yield call.path
        last = roles.get(call.path, last)


def tensor_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield what layers gather and sum of their outputs, forward and backward."""
    for call in calls:
        role = roles.get(role_key(call.path, call.method))
        numbers, kept = _output_elements(plan, call), np.dtype(call.dtype).itemsize
        numbers //= call.out_shape[-1] if role == "logits" else 1
        full = accumulation_dtype(call.dtype).itemsize
        for kind, payload, arrays in _role_collectives(
            role, numbers, kept, full, plan.mesh.tensor
        ):
            yield PlannedCollective(
                what=_TERM_NAMES.get(role or "", ""),
                kind=kind,
                axes=(TENSOR_AXIS,),
                payload=payload,
                layer=call.path,
                arrays=arrays,
            )


def localize_channels(plan: Plan, roles: Roles, call: LayerCall) -> LayerCall:
    """Return a call with the channels that one device reads and makes."""
    role = roles.get(role_key(call.path, call.method))
    if role is None:
        return call
    groups, devices = getattr(call.layer, "feature_group_count", 1), plan.mesh.tensor
    reads, makes = call.shape[-1], call.out_shape[-1]
    if role in ("filter", "column", "logits"):
        reads, makes = reads * max(groups // devices, 1) // groups, makes // devices
    elif role in ("channel", "row", "scatter"):
        reads //= devices
    elif role == "inner":
        reads, makes = reads // devices, makes // devices
    return replace(
        call,
        shape=(*call.shape[:-1], reads),
        out_shape=(*call.out_shape[:-1], makes),
        padded=(*call.padded_shape[:-1], reads),
        out_padded=(*call.padded_out_shape[:-1], makes),
    )


def _role_collectives(
    role: Role | None, numbers: int, kept: int, full: int, devices: int
) -> tuple[tuple[str, int, int], ...]:
    """Return kind, bytes and arrays of what a role moves."""
    part = numbers // devices
    if role in ("filter", "gather"):
        return (("all-gather", numbers * kept, 1), ("reduce-scatter", part * full, 1))
    if role in ("scatter", "lookup"):
        return (("all-gather", numbers * full, 1), ("reduce-scatter", part * full, 1))
    if role in ("channel", "row", "vocabulary"):
        return (("all-reduce", 2 * numbers * full, 2),)
    if role == "logits":
        return (("all-reduce", 5 * numbers * full, 5),)
    return ()


def _output_elements(plan: Plan, call: LayerCall) -> int:
    """Count the numbers of a layer's whole output on one device."""
    axes = spatial_axes(len(call.out_shape))
    return (
        math.prod(call.padded_out_shape)
        // plan.mesh.batch_shards
        // plan.mesh.size(*axes)
    )
