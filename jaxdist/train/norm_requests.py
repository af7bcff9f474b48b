"""Asked: the lengths that an optimizer asks for, found out on few of many leaves.

Leaves of blocks that are alike are treated alike, and so are slots of a kind: that is
what makes them one (`jaxdist/pipeline/stage_parameters.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from jaxdist.pipeline.stage_parameters import SlotArrays
from jaxdist.profile.repeated_blocks import RepeatedBlocks
from jaxdist.train.sharded_norms import trace_norm_requests
from jaxdist.train.state import TrainState, leaf_names
from jaxdist.train.task import Task

NormRequests = tuple[tuple[tuple[bool, ...], ...], int]
"""For each time whether it asks for each leaf's, and how often for a total."""


def norm_requests(
    task: Task, state_shapes: TrainState, repeated_blocks: RepeatedBlocks
) -> NormRequests:
    """Tell which leaves' squares a task's optimizer asks for, as `trace_norm_requests`.

    Args:
        task: whose optimizer.
        state_shapes: shapes of what devices hold.
        repeated_blocks: blocks of the network whose leaves need not be asked about.
    """
    stands = (
        _slot_representatives(state_shapes.params)
        if isinstance(state_shapes.params, SlotArrays)
        else {}
    )

    def few(node: Any) -> Any:
        return (
            _representative_slots(node, stands)
            if isinstance(node, SlotArrays)
            else node
        )

    params, opt = jax.tree.map(
        few,
        repeated_blocks.prune_state((state_shapes.params, state_shapes.opt)),
        is_leaf=lambda node: isinstance(node, SlotArrays),
    )
    asked, totals = trace_norm_requests(task.optimizer, params, opt)
    read = leaf_names(params)
    names = [stands.get(name, name) for name in leaf_names(state_shapes.params)]
    whole = (
        repeated_blocks.expand_leaves(dict(zip(read, one, strict=True)), names)
        for one in asked
    )
    return tuple(map(tuple, whole)), totals


def _slot_representatives(slot_arrays: SlotArrays) -> dict[str, str]:
    """Return the slot that stands for each: the first of its kind, by name."""
    first: dict[Any, str] = {}
    stands = {}
    for kind, slots in (
        ("matrices", slot_arrays.matrices),
        ("vectors", slot_arrays.vectors),
    ):
        for number, slot in slots.items():
            form = kind, len(slot.shape), slot.dtype
            stands[f"{kind}/{number}"] = first.setdefault(form, f"{kind}/{number}")
    return stands


def _representative_slots(
    slot_arrays: SlotArrays, representatives: Mapping[str, str]
) -> SlotArrays:
    """Return the slots that stand for others."""
    kept = set(representatives.values())

    def own(kind: str, slots: Mapping[str, Any]) -> dict[str, Any]:
        return {k: slot for k, slot in slots.items() if f"{kind}/{k}" in kept}

    return replace(
        slot_arrays,
        matrices=own("matrices", slot_arrays.matrices),
        vectors=own("vectors", slot_arrays.vectors),
    )
