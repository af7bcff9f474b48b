"""Dealing: which leaf of a network lies in which slot."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.pipeline.leaf_packing import local_size
from jaxdist.pipeline.stage_parameters import ParamSlot, SlotLayout
from jaxdist.pipeline.stage_placement import StagePlacement

_SlotKind = tuple[bool, str, bool, bool, bool]
"""Vector, dtype, split over tensor, shared out over fsdp, compressed."""


def assign_slots(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    leaf_stages: Sequence[frozenset[int]],
    placement: StagePlacement,
    is_compressed: Callable[[LeafSharding], bool] = lambda leaf: False,
) -> SlotLayout:
    """Deal the leaves of a network into slots.

    Args:
        plan: the layout.
        leaves: how each lies but for the pipe axis.
        leaf_stages: stages that use each leaf.
        placement: where stages are; the replicas of one hold the same.
        is_compressed: whether the gradient of a leaf is compressed.
    """
    groups: dict[Any, list[list[int]]] = defaultdict(
        lambda: [[] for _ in range(plan.mesh.pipe)]
    )
    owners = [{placement.stage_devices[stage] for stage in own} for own in leaf_stages]
    devices = [frozenset(itertools.chain(*own)) for own in owners]
    shared = tuple(place for place, own in enumerate(owners) if len(own) != 1)
    for place, leaf in enumerate(leaves):
        for device in () if place in shared else devices[place]:
            groups[_slot_kind(leaf, is_compressed(leaf))][device].append(place)
    slots = [
        _slot(plan, leaves, kind, places)
        for kind, own in sorted(groups.items())
        for places in _leaves_by_size(plan, leaves, own)
    ]
    ordered = sorted(slots, key=lambda slot: slot.vector)
    named = [
        replace(slot, leaf=replace(slot.leaf, name=f"{slot.leaf.name}/{k}"))
        for k, slot in enumerate(ordered)
    ]
    return SlotLayout(
        plan=plan,
        leaves=tuple(leaves),
        slots=tuple(named),
        shared=shared,
        devices=tuple(devices),
    )


def _slot_kind(leaf: LeafSharding, sent: bool) -> _SlotKind:
    """Return what leaves of one slot have in common."""
    vector = len(leaf.shape) < 2 or "bias" in leaf.name.split("/")
    split = leaf.tensor_dim is not None, leaf.fsdp_dim is not None
    return vector, np.dtype(leaf.dtype).name, *split, sent


def _leaves_by_size(
    plan: Plan, leaves: Sequence[LeafSharding], device_leaves: Sequence[list[int]]
) -> list[tuple[int | None, ...]]:
    """Return the largest leaf of each device, the second largest of each, and so on."""
    rows = [
        sorted(p, key=lambda i: -local_size(plan, leaves[i])) for p in device_leaves
    ]
    return [
        tuple(row[k] if k < len(row) else None for row in rows)
        for k in range(max(map(len, rows)))
    ]


def _slot(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    kind: _SlotKind,
    places: tuple[int | None, ...],
) -> ParamSlot:
    vector, dtype, tensor, fsdp, sent = kind
    most = max(local_size(plan, leaves[p]) for p in places if p is not None)
    parts = plan.mesh.fsdp if fsdp else 1, plan.mesh.tensor if tensor else 1
    leaf = LeafSharding(
        name="vectors" if vector else "matrices",
        shape=(plan.mesh.pipe, *parts, most),
        dtype=np.dtype(dtype),
        tensor_dim=2 if tensor else None,
        fsdp_dim=1 if fsdp else None,
        pipe_dim=0,
        compress_gradient=sent,
    )
    return ParamSlot(vector=vector, places=places, leaf=leaf)
