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


def norm_requests(task: Task, held: TrainState, alike: RepeatedBlocks) -> NormRequests:
    """Tell which leaves' squares a task's optimizer asks for, as `trace_norm_requests`.

    Args:
        task: whose optimizer.
        held: shapes of what devices hold.
        alike: blocks of the network whose leaves need not be asked about.
    """
    stands = (
        _slot_representatives(held.params)
        if isinstance(held.params, SlotArrays)
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
        alike.pruned((held.params, held.opt)),
        is_leaf=lambda node: isinstance(node, SlotArrays),
    )
    asked, totals = trace_norm_requests(task.optimizer, params, opt)
    read = leaf_names(params)
    names = [stands.get(name, name) for name in leaf_names(held.params)]
    whole = (alike.whole(dict(zip(read, one, strict=True)), names) for one in asked)
    return tuple(map(tuple, whole)), totals


def _slot_representatives(held: SlotArrays) -> dict[str, str]:
    """Return the slot that stands for each: the first of its kind, by name."""
    first: dict[Any, str] = {}
    stands = {}
    for kind, slots in (("matrices", held.matrices), ("vectors", held.vectors)):
        for number, slot in slots.items():
            form = kind, len(slot.shape), slot.dtype
            stands[f"{kind}/{number}"] = first.setdefault(form, f"{kind}/{number}")
    return stands


def _representative_slots(held: SlotArrays, stands: Mapping[str, str]) -> SlotArrays:
    """Return the slots that stand for others."""
    kept = set(stands.values())

    def own(kind: str, slots: Mapping[str, Any]) -> dict[str, Any]:
        return {k: slot for k, slot in slots.items() if f"{kind}/{k}" in kept}

    return replace(
        held,
        matrices=own("matrices", held.matrices),
        vectors=own("vectors", held.vectors),
    )
