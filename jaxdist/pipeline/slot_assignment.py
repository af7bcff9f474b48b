"""Slot assignment: which leaf of the network lies in which slot on which device."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.pipeline.stage_parameters import ParamSlot, SlotLayout, local_size
from jaxdist.pipeline.stage_placement import StagePlacement


def assign_slots(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    leaf_stages: Sequence[frozenset[int]],
    placement: StagePlacement,
    is_compressed: Callable[[LeafSharding], bool] = lambda leaf: False,
) -> SlotLayout:
    """Assign the leaves of a network to slots.

    Args:
        plan: the layout.
        leaves: how each is sharded, the pipe axis aside.
        leaf_stages: stages that use each leaf.
        placement: where stages are; the replicas of one hold the same.
        is_compressed: whether the gradient of a leaf is compressed.
    """
    owners = [{placement.stage_devices[stage] for stage in own} for own in leaf_stages]
    devices = [frozenset(itertools.chain(*own)) for own in owners]
    # A leaf of several stages is no slot: every device holds it whole.
    shared = tuple(place for place, own in enumerate(owners) if len(own) != 1)

    # Leaves of one slot go through the same optimizer, sharding and reduction, so a
    # kind is all that they have in common: (vector, dtype, split over tensor, sharded
    # over fsdp, compressed).
    kinds: dict[tuple[bool, str, bool, bool, bool], list[list[int]]] = defaultdict(
        lambda: [[] for _ in range(plan.mesh.pipe)]
    )
    for place, leaf in enumerate(leaves):
        if place in shared:
            continue
        kind = (
            len(leaf.shape) < 2 or "bias" in leaf.name.split("/"),
            np.dtype(leaf.dtype).name,
            leaf.tensor_dim is not None,
            leaf.fsdp_dim is not None,
            is_compressed(leaf),
        )
        for device in devices[place]:
            kinds[kind][device].append(place)

    # The largest leaves of all devices share a slot, then the second largest, and so
    # on: that leaves least padding. Sorted kinds put matrices before vectors.
    slots: list[ParamSlot] = []
    for kind, device_leaves in sorted(kinds.items()):
        vector, dtype, tensor, fsdp, sent = kind
        by_size = (
            sorted(own, key=lambda i: -local_size(plan, leaves[i]))
            for own in device_leaves
        )
        for places in itertools.zip_longest(*by_size):
            # The largest leaf sets the length of the slot; the others are padded.
            most = max(local_size(plan, leaves[p]) for p in places if p is not None)
            parts = plan.mesh.fsdp if fsdp else 1, plan.mesh.tensor if tensor else 1
            leaf = LeafSharding(
                name=f"{'vectors' if vector else 'matrices'}/{len(slots)}",
                shape=(plan.mesh.pipe, *parts, most),
                dtype=np.dtype(dtype),
                tensor_dim=2 if tensor else None,
                fsdp_dim=1 if fsdp else None,
                pipe_dim=0,
                compress_gradient=sent,
            )
            slots.append(ParamSlot(vector=vector, places=places, leaf=leaf))
    return SlotLayout(
        plan=plan,
        leaves=tuple(leaves),
        slots=tuple(slots),
        shared=shared,
        devices=tuple(devices),
    )
