"""Schedule arrays: a schedule as numbers for the devices, one row a superstep.

Each device has rings of buffers for messages that arrive and for what it keeps: the
residuals of forward passes, and those of backward passes where gradients of weights
come later. A row of a ring is taken when something arrives and free again after its
last use, so a ring has as many rows as a device ever holds at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from jaxdist.pipeline.plan_schedule import PermutePairs, StagePlacement
from jaxdist.pipeline.schedule_base import Supersteps, WorkItem, WorkKind

WORK_KINDS: Final[tuple[WorkKind, ...]] = ("forward", "backward", "weights")
"""Kinds of work, by their index in the arrays."""
NO_ENTRY: Final = -1
"""Index that stands for no row, or no work."""

LiveSpans = dict[tuple[int, int], tuple[int, int]]
"""First and last superstep in which the array of (stage, microbatch) is held."""

_COLUMNS: Final = ("stage", "micro")
_RINGS: Final = ("input", "gradient", "kept", "weight_kept")
_BACKWARD_RINGS: Final = ("gradient", "weight_kept")
"""Rings that no forward pass reads or writes."""
_ARRIVAL_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {"input": "comes", "gradient": "returns"}
)
"""The column with the ring row of each arrival."""


@dataclass(frozen=True, kw_only=True)
class ScheduleArrays:
    """What each device does and where its arrays are.

    All are int32 [supersteps, devices, kinds of work], those of arrivals
    [supersteps, devices, hops].
    """

    kinds: tuple[WorkKind, ...]
    """Kinds of work: weights only where they have ticks of their own."""
    stage: np.ndarray
    """Stage of the work; `NO_ENTRY` where there is no work of the kind."""
    micro: np.ndarray
    """Microbatch of the work."""
    comes: np.ndarray
    """Row of the ring of inputs that an arriving activation goes to."""
    returns: np.ndarray
    """Row of the ring of gradients that an arriving gradient goes to."""
    input: np.ndarray
    """Row of the ring of inputs that the work reads."""
    gradient: np.ndarray
    """Row of the ring of gradients that the work reads."""
    kept: np.ndarray
    """Row of the ring of residuals, from the forward pass to their last use."""
    weight_kept: np.ndarray | None = None
    """Row of the ring of weight residuals, from the backward pass to the gradients of
    weights; None where these have no ticks of their own."""
    rows: tuple[int, int, int, int]
    """Rows of the four rings: inputs, gradients, kept, weight_kept."""
    hops: tuple[PermutePairs, ...]
    """(from, to) of activations in each exchange; gradients go from `to` to `from`."""

    def columns(self) -> dict[str, np.ndarray]:
        """Return all arrays by name."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: x for name, x in values if isinstance(x, np.ndarray)}


def select_kind(row: Mapping[str, Any], kind: WorkKind) -> dict[str, Any]:
    """Return a device's numbers in a superstep, those of one kind of work alone."""
    code = WORK_KINDS.index(kind)
    by_kind = _COLUMNS + _RINGS
    return {name: x[code] if name in by_kind else x for name, x in row.items()}


def schedule_arrays(
    supersteps: Supersteps, placement: StagePlacement
) -> ScheduleArrays:
    """Write a schedule as arrays.

    Args:
        supersteps: what each device does between two exchanges.
        placement: where stages are.
    """
    works = [
        (step, device, work)
        for step, rows in enumerate(supersteps)
        for row in rows
        for device, work in enumerate(row)
        if work is not None
    ]
    has_weights = any(work.kind == "weights" for _, _, work in works)
    kinds = WORK_KINDS if has_weights else WORK_KINDS[:-1]
    hops = placement.send_permutations()
    shape = len(supersteps), placement.devices
    found = {
        name: np.full((*shape, len(kinds)), NO_ENTRY, np.int32)
        for name in _COLUMNS + _RINGS
        if has_weights or name != "weight_kept"
    }
    for name in _ARRIVAL_COLUMNS.values():
        found[name] = np.full((*shape, len(hops)), NO_ENTRY, np.int32)
    for step, device, work in works:
        at = step, device, WORK_KINDS.index(work.kind)
        found["stage"][at], found["micro"][at] = work.stage, work.microbatch

    sizes = dict.fromkeys(_RINGS, 0)
    for name, spans in _live_spans(works, placement.stages).items():
        # By start, each span takes the lowest row of its device that is free: for
        # intervals this first fit needs no more rows than are live at once.
        last_uses: list[list[int]] = [[] for _ in range(placement.devices)]
        rows: dict[tuple[int, int], int] = {}
        for key, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
            (stage, micro), device = key, placement.device_of(*key)
            ends = last_uses[device]
            # Strictly before: what a superstep writes into a ring may come before its
            # last reads.
            row = next((r for r, last in enumerate(ends) if last < start), len(ends))
            ends[row : row + 1] = [end]
            rows[key] = row
            if name in _ARRIVAL_COLUMNS:
                # An input comes from the stage before, a gradient from the one after,
                # against the direction of the pair.
                lower = stage - 1 if name == "input" else stage
                pair = tuple(placement.device_of(s, micro) for s in (lower, lower + 1))
                hop = next(n for n, pairs in enumerate(hops) if pair in pairs)
                found[_ARRIVAL_COLUMNS[name]][start, device, hop] = row
        sizes[name] = max(map(len, last_uses))
        for step, device, work in works if name in found else ():
            # A forward pass reads no gradient, though one arrives later for its key.
            if name not in _BACKWARD_RINGS or work.kind != "forward":
                at = step, device, WORK_KINDS.index(work.kind)
                # The first stage reads the batch, and the last has no gradient to read.
                found[name][at] = rows.get((work.stage, work.microbatch), NO_ENTRY)
    inputs, gradients, kept, weight_kept = sizes.values()
    return ScheduleArrays(
        **found,
        kinds=kinds,
        rows=(inputs, gradients, kept, weight_kept),
        hops=hops,
    )


def _live_spans(
    works: Sequence[tuple[int, int, WorkItem]], stages: int
) -> dict[str, LiveSpans]:
    """Return from when to when each array of each ring is held.

    Args:
        works: (superstep, device, work item), in order.
        stages: number of stages.
    """
    # An evaluation keeps nothing for a backward pass.
    has_backward = any(work.kind == "backward" for _, _, work in works)
    has_weights = any(work.kind == "weights" for _, _, work in works)
    spans: dict[str, LiveSpans] = {name: {} for name in _RINGS}
    inputs, gradients, kept, weight_kept = (spans[name] for name in _RINGS)
    for step, _, work in works:
        stage, micro = key = work.stage, work.microbatch
        if key in inputs:
            inputs[key] = (inputs[key][0], step)
        # What is sent in a superstep is there from the next one on.
        if work.kind == "forward":
            if stage + 1 < stages:
                inputs[stage + 1, micro] = (step + 1, step + 1)
            if has_backward:
                kept[key] = (step, step)
            continue
        kept[key] = (kept[key][0], step)
        if key in gradients:
            gradients[key] = (gradients[key][0], step)
        if work.kind == "weights":
            weight_kept[key] = (weight_kept[key][0], step)
            continue
        if has_weights:
            weight_kept[key] = (step, step)
        if stage:
            gradients[stage - 1, micro] = (step + 1, step + 1)
    return spans
