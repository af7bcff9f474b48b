"""Tables: a schedule as numbers for devices, one row a beat.

Each device has rings of rows for what arrives and for what it keeps for the backward
pass. A row is taken when something comes and free again behind its last use, so a ring
has as many rows as its device ever holds at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from jaxdist.pipeline.stage_placement import PermutePairs, StagePlacement
from jaxdist.pipeline.work_item import Supersteps, WorkItem

WORK_KINDS: Final = ("forward", "backward")
"""Kinds of work, as tables number them."""
NO_ENTRY: Final = -1
"""In a table: no row, no work."""

LiveSpans = dict[tuple[int, int], tuple[int, int]]
"""The first and the last beat in which the array of (stage, microbatch) is held."""

_COLUMNS: Final = ("stage", "micro")
_RINGS: Final = ("input", "gradient", "kept")
_ARRIVAL_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {"input": "comes", "gradient": "returns"}
)
"""The column that says where what a ring holds arrives."""


@dataclass(frozen=True, kw_only=True)
class ScheduleArrays:
    """What each device does and where its arrays are, int32 [beats, devices, kinds of
    work] each, and [beats, devices, hops] for what arrives.
    """

    stage: np.ndarray
    """Stage that a work is done for; `NO_ENTRY` where there is no work of the kind."""
    micro: np.ndarray
    """Microbatch that it is done on."""
    comes: np.ndarray
    """Row of the ring of inputs for what arrives from the stage before."""
    returns: np.ndarray
    """Row of the ring of gradients for what arrives from the stage behind."""
    input: np.ndarray
    """Row of the ring of inputs that a work reads."""
    gradient: np.ndarray
    """Row of the ring of gradients that it reads."""
    kept: np.ndarray
    """Row of the ring of what a forward pass keeps for the backward pass."""
    rows: tuple[int, int, int]
    """Rows of the three rings: inputs, gradients, kept."""
    hops: tuple[PermutePairs, ...]
    """Who sends to whom behind a beat; gradients go the other way round."""

    def columns(self) -> dict[str, np.ndarray]:
        """Return all numbers by name."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: x for name, x in values if isinstance(x, np.ndarray)}


def select_kind(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a device's numbers in a beat, of what is numbered by kind those of one."""
    code = WORK_KINDS.index(kind)
    each = _COLUMNS + _RINGS
    return {name: x[code] if name in each else x for name, x in row.items()}


def schedule_arrays(
    supersteps: Supersteps, placement: StagePlacement
) -> ScheduleArrays:
    """Write a schedule as numbers.

    Args:
        supersteps: what each device does between two exchanges.
        placement: where stages are.
    """
    spans = _live_spans(supersteps, placement.stages)
    shape, hops = (len(supersteps), placement.devices), placement.send_permutations()
    found = {name: _no_entries(*shape, len(WORK_KINDS)) for name in _COLUMNS + _RINGS}
    for name in _ARRIVAL_COLUMNS.values():
        found[name] = _no_entries(*shape, len(hops))
    for beat, device, one in _iter_work(supersteps):
        at = beat, device, WORK_KINDS.index(one.kind)
        found["stage"][at], found["micro"][at] = one.stage, one.microbatch
    sizes = []
    for name, span in spans.items():
        rows, most = _assign_rows(span, placement)
        sizes.append(most)
        for beat, device, one in _iter_work(supersteps):
            if name != "gradient" or one.kind != "forward":
                at = beat, device, WORK_KINDS.index(one.kind)
                found[name][at] = rows.get((one.stage, one.microbatch), NO_ENTRY)
        if name in _ARRIVAL_COLUMNS:
            for key, (start, _) in span.items():
                place = (
                    start,
                    placement.device_of(*key),
                    _permutation_index(name, key, placement, hops),
                )
                found[_ARRIVAL_COLUMNS[name]][place] = rows[key]
    return ScheduleArrays(**found, rows=(sizes[0], sizes[1], sizes[2]), hops=hops)


def _no_entries(*shape: int) -> np.ndarray:
    return np.full(shape, NO_ENTRY, np.int32)


def _permutation_index(
    name: str,
    key: tuple[int, int],
    places: StagePlacement,
    hops: Sequence[PermutePairs],
) -> int:
    """Return the hop in which an array comes: an input, or a gradient."""
    stage, micro = key
    first = stage - 1 if name == "input" else stage
    pair = places.device_of(first, micro), places.device_of(first + 1, micro)
    return next(n for n, hop in enumerate(hops) if pair in hop)


def _live_spans(beats: Supersteps, stages: int) -> dict[str, LiveSpans]:
    """Return from when to when each array of each ring is held."""
    backward = any(one.kind == "backward" for _, _, one in _iter_work(beats))
    spans: dict[str, LiveSpans] = {name: {} for name in _RINGS}
    for beat, _, one in _iter_work(beats):
        _record_spans(spans, beat, one, stages, backward)
    return spans


def _iter_work(beats: Supersteps) -> Iterator[tuple[int, int, WorkItem]]:
    """Yield every work with its beat and its device."""
    for beat, rows in enumerate(beats):
        for row in rows:
            for device, one in enumerate(row):
                if one is not None:
                    yield beat, device, one


def _record_spans(
    spans: dict[str, LiveSpans], beat: int, one: WorkItem, stages: int, backward: bool
) -> None:
    """Note from when to when a work's arrays are held."""
    key, inputs = (one.stage, one.microbatch), spans["input"]
    if one.kind == "forward":
        if one.stage + 1 < stages:
            # What is sent in a beat is there from the next one on.
            inputs[one.stage + 1, one.microbatch] = (beat + 1, beat + 1)
        if key in inputs:
            inputs[key] = (inputs[key][0], beat)
        if backward:
            spans["kept"][key] = (beat, beat)
        return
    spans["kept"][key] = (spans["kept"][key][0], beat)
    if key in inputs:
        inputs[key] = (inputs[key][0], beat)
    if one.stage:
        spans["gradient"][one.stage - 1, one.microbatch] = (beat + 1, beat + 1)
    if key in spans["gradient"]:
        spans["gradient"][key] = (spans["gradient"][key][0], beat)


def _assign_rows(
    spans: LiveSpans, places: StagePlacement
) -> tuple[dict[tuple[int, int], int], int]:
    """Give each span the lowest row of its device that is free all along.

    Returns:
        The rows, and how many the device has that needs most.
    """
    free: list[list[int]] = [
        [] for _ in range(places.devices)
    ]  # the last beat of each row
    rows: dict[tuple[int, int], int] = {}
    for key, (start, end) in sorted(spans.items(), key=lambda item: item[1]):
        ends = free[places.device_of(*key)]
        row = next((r for r, last in enumerate(ends) if last < start), len(ends))
        ends[row : row + 1] = [end]
        rows[key] = row
    return rows, max(map(len, free))
