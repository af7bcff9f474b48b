"""Watched: the time of profiled steps dealt out to terms, each moment to one.

Operations of a device overlap and lie in one another. A moment belongs to what computes
in it; else to a wait for other devices; else to what moves; else it is `other`. So
what is moved beside computing takes no time, and the terms add up to the step.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from jaxdist.core.step_breakdown import (
    BETWEEN_STEPS,
    COMPUTE,
    OTHER,
    DeviceBreakdown,
    LayerTime,
)
from jaxdist.profile.instruction_term import InstructionLabel
from jaxdist.profile.pipeline_lane import pipeline_lane, run_duration_ns
from jaxdist.profile.xplane import TraceSpan

_NS: Final = 1e-9


@dataclass(frozen=True, order=True)
class _MomentOwner:
    """What a moment belongs to; the least of several wins."""

    rank: int
    term: str
    layer: str = ""
    backward: bool = False


def device_breakdowns(
    spans: Sequence[TraceSpan], labels: Mapping[str, InstructionLabel]
) -> tuple[DeviceBreakdown, ...]:
    """Deal out the time of the steps that were seen from beginning to end.

    Args:
        spans: operations of a training step's program.
        labels: by the name of the instruction; loops and calls, which only hold others,
            are not among them.

    Returns:
        One for each device; none where no step was seen whole.
    """
    by_device: defaultdict[int, list[TraceSpan]] = defaultdict(list)
    for span in spans:
        by_device[span.device].append(span)
    found = (_device_breakdown(n, by_device[n], labels) for n in sorted(by_device))
    return tuple(one for one in found if one is not None)


def _device_breakdown(
    number: int, spans: Sequence[TraceSpan], parts: Mapping[str, InstructionLabel]
) -> DeviceBreakdown | None:
    runs = _complete_runs(spans)
    if not runs:
        return None
    begin = (min(span.start_ns for span in run) for run in runs[1:])
    end = (max(span.end_ns for span in run) for run in runs)
    spent: defaultdict[_MomentOwner, float] = defaultdict(float)
    for run in runs:
        for share, took in _attribute_moments(run, parts):
            spent[share] += took
    steps = len(runs)
    pauses = [max(0.0, later - sooner) for sooner, later in zip(end, begin)]
    if pauses:
        # An evaluation or a checkpoint makes one of them long: none of a step.
        spent[_MomentOwner(3, BETWEEN_STEPS)] = steps * median(pauses)
    terms: defaultdict[str, float] = defaultdict(float)
    layers: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for share, took in spent.items():
        terms[share.term] += _NS * took / steps
        if share.term == COMPUTE:
            layers[share.layer][share.backward] += _NS * took / steps
    return DeviceBreakdown(
        device=number,
        steps=steps,
        terms_s=dict(sorted(terms.items(), key=lambda pair: -pair[1])),
        layers_s={n: LayerTime(forward=f, backward=b) for n, (f, b) in layers.items()},
        lane=pipeline_lane(sorted(runs, key=run_duration_ns)[steps // 2], parts),
    )


def _complete_runs(spans: Sequence[TraceSpan]) -> list[list[TraceSpan]]:
    """Return the runs that have as many operations as most, in their order."""
    runs: defaultdict[int, list[TraceSpan]] = defaultdict(list)
    for span in spans:
        runs[span.run].append(span)
    counts = {run: sum(not s.is_wait for s in found) for run, found in runs.items()}
    most = max(counts.values())
    whole = [found for run, found in runs.items() if counts[run] == most]
    return sorted(whole, key=lambda found: min(span.start_ns for span in found))


def _attribute_moments(
    run: Sequence[TraceSpan], parts: Mapping[str, InstructionLabel]
) -> Iterator[tuple[_MomentOwner, float]]:
    """Yield each moment of a run and what it belongs to."""
    marks = sorted(
        (at, turn, share)
        for span in run
        if (share := _span_owner(span, parts)) is not None
        for at, turn in ((span.start_ns, 1), (span.end_ns, -1))
    )
    active: Counter[_MomentOwner] = Counter()
    for (at, turn, share), (later, _, _) in pairwise(marks):
        active[share] += turn
        if later > at:
            yield from _divide_moment(active, later - at)


def _divide_moment(
    active: Mapping[_MomentOwner, int], took: float
) -> Iterator[tuple[_MomentOwner, float]]:
    """Yield the parts of a moment, alike where several have the same rank."""
    there = [one for one, times in active.items() if times > 0] or [_UNKNOWN]
    best = min(one.rank for one in there)
    first = [one for one in there if one.rank == best]
    yield from ((one, took / len(first)) for one in first)


_UNKNOWN: Final = _MomentOwner(4, OTHER)


def _span_owner(
    span: TraceSpan, parts: Mapping[str, InstructionLabel]
) -> _MomentOwner | None:
    part = parts.get(span.instruction)
    if part is None:
        return _UNKNOWN
    if not part.wait_term:
        return _MomentOwner(0, part.term, part.layer, part.is_backward)
    return (
        _MomentOwner(1, part.wait_term) if span.is_wait else _MomentOwner(2, part.term)
    )
