"""Breakdown of profiled steps: a profiler's trace, its time attributed to terms.

Operations of a device overlap and lie in one another. A moment belongs to what computes
in it; else to a wait for other devices; else to what moves; else it is `other`. So
what is moved beside computing takes no time, and the terms add up to the step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from jaxdist.core.step_breakdown import (
    BETWEEN_STEPS,
    BUBBLE,
    COMPUTE,
    OTHER,
    DeviceBreakdown,
    LayerTime,
    StageTiming,
)

_NS: Final = 1e-9
"""Seconds of a nanosecond, the unit of the profiler."""
_WAIT_EVENT: Final = re.compile(r"Wait: pending_threads")
"""What a collective of one process does until the last of its devices is there."""


@dataclass(frozen=True, kw_only=True)
class InstructionLabel:
    """The part of a step that an instruction of its program belongs to."""

    term: str
    """`compute`, `packing`, `update` or `collective, axes`."""
    wait_term: str = ""
    """Term of the time that a collective waits for others; empty: it computes."""
    layer: str = ""
    """Path of the layer that it computes; empty where none is known."""
    is_backward: bool = False
    """Whether it belongs to the backward pass."""
    stage_work: tuple[str, int] | None = None
    """Kind of the work and stage that it belongs to, where there are stages."""


@dataclass(frozen=True, kw_only=True)
class TraceSpan:
    """One operation of a compiled program, once, on one device."""

    device: int
    """Ordinal of the device."""
    run: int
    """Which run of the program it belongs to."""
    instruction: str
    """Name of the instruction."""
    start_ns: float
    """Nanoseconds."""
    end_ns: float
    """Nanoseconds."""
    is_wait: bool = False
    """Whether it is the part of a collective in which others are waited for."""


def read_spans(path: Path, module: str) -> tuple[TraceSpan, ...]:
    """Read the operations of one program from a trace.

    A profiler that does not say of an operation which run of the program and which
    device it is of, as that of graphics processors, gives none.

    Args:
        path: an `xplane.pb` that `jax.profiler` wrote.
        module: name of the program.
    """
    from jax.profiler import ProfileData

    found: list[TraceSpan] = []
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            # A line is a thread. Sorted so that a wait follows the operation it is in.
            inside: TraceSpan | None = None
            events = sorted(line.events, key=lambda e: (e.start_ns, -e.duration_ns))
            for event in events:
                start, end = event.start_ns, event.start_ns + event.duration_ns
                if _WAIT_EVENT.match(event.name):
                    if inside is not None and start < inside.end_ns:
                        end = min(end, inside.end_ns)
                        found.append(
                            replace(inside, start_ns=start, end_ns=end, is_wait=True)
                        )
                    continue
                # Threads run other programs too, and events of the runtime that belong
                # to none.
                about = dict(event.stats)
                if about.get("hlo_module") != module or "run_id" not in about:
                    continue
                inside = TraceSpan(
                    device=int(about.get("device_ordinal", 0)),
                    run=int(about["run_id"]),
                    instruction=str(about["hlo_op"]),
                    start_ns=start,
                    end_ns=end,
                )
                found.append(inside)
    return tuple(found)


@dataclass(frozen=True, order=True)
class _MomentOwner:
    """What a moment belongs to; the least of several wins."""

    rank: int
    term: str
    layer: str = ""
    backward: bool = False


_UNKNOWN: Final = _MomentOwner(4, OTHER)


def device_breakdowns(
    spans: Sequence[TraceSpan], labels: Mapping[str, InstructionLabel]
) -> tuple[DeviceBreakdown, ...]:
    """Attribute the time of the steps that were traced from beginning to end.

    Args:
        spans: operations of a training step's program.
        labels: by the name of the instruction; loops and calls, which only hold others,
            are not among them.

    Returns:
        One for each device.
    """
    by_device: defaultdict[int, defaultdict[int, list[TraceSpan]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for span in spans:
        by_device[span.device][span.run].append(span)
    found = []
    for device, by_run in sorted(by_device.items()):
        # Whole runs have as many operations as most; the profiler cuts the outer ones.
        counts = {run: sum(not s.is_wait for s in by_run[run]) for run in by_run}
        most = max(counts.values())
        runs = [by_run[run] for run in by_run if counts[run] == most]
        runs.sort(key=lambda run: min(span.start_ns for span in run))
        spent: defaultdict[_MomentOwner, float] = defaultdict(float)
        for run in runs:
            for owner, took in _attribute_moments(run, labels):
                spent[owner] += took
        steps = len(runs)
        # Steps follow each other; what is between them (input, logging) is a term too.
        starts = [min(span.start_ns for span in run) for run in runs]
        ends = [max(span.end_ns for span in run) for run in runs]
        pauses = [max(0.0, later - end) for end, later in zip(ends, starts[1:])]
        if pauses:
            # An evaluation or a checkpoint makes one of them long: none of a step.
            # All sums are divided by the steps below.
            spent[_MomentOwner(3, BETWEEN_STEPS)] = steps * median(pauses)
        terms: defaultdict[str, float] = defaultdict(float)
        layers: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for owner, took in spent.items():
            terms[owner.term] += _NS * took / steps
            if owner.term == COMPUTE:
                layers[owner.layer][owner.backward] += _NS * took / steps
        # The lane shows the run of median length.
        by_length = sorted(range(steps), key=lambda i: ends[i] - starts[i])
        found.append(
            DeviceBreakdown(
                device=device,
                steps=steps,
                terms_s=dict(sorted(terms.items(), key=lambda pair: -pair[1])),
                layers_s={
                    name: LayerTime(forward=forward, backward=backward)
                    for name, (forward, backward) in layers.items()
                },
                lane=_stage_timings(runs[by_length[steps // 2]], labels),
            )
        )
    return tuple(found)


def _attribute_moments(
    run: Sequence[TraceSpan], labels: Mapping[str, InstructionLabel]
) -> Iterator[tuple[_MomentOwner, float]]:
    """Yield the moments of a run, nanoseconds each, and what they belong to."""
    marks: list[tuple[float, int, _MomentOwner]] = []
    for span in run:
        label = labels.get(span.instruction)
        if label is None:
            owner = _UNKNOWN
        elif not label.wait_term:
            owner = _MomentOwner(0, label.term, label.layer, label.is_backward)
        elif span.is_wait:
            owner = _MomentOwner(1, label.wait_term)
        else:
            owner = _MomentOwner(2, label.term)
        marks += [(span.start_ns, 1, owner), (span.end_ns, -1, owner)]
    # A sweep over the ends of all spans, counting which owners are active.
    marks.sort()
    active: Counter[_MomentOwner] = Counter()
    for (at, turn, owner), (later, _, _) in pairwise(marks):
        # The same owner may be active several times: threads of one operation.
        active[owner] += turn
        if later > at:
            # Several of the best rank share the moment alike.
            there = [one for one, times in active.items() if times > 0] or [_UNKNOWN]
            best = min(one.rank for one in there)
            first = [one for one in there if one.rank == best]
            yield from ((one, (later - at) / len(first)) for one in first)


def _stage_timings(
    run: Sequence[TraceSpan], labels: Mapping[str, InstructionLabel]
) -> tuple[StageTiming, ...]:
    """Return when a device worked for which stage of a pipeline, if there are stages.

    Between two works something is sent or received, which the bubble's label shows.
    """
    begin, times = min(span.start_ns for span in run), Counter[tuple[str, int]]()
    cells: list[tuple[tuple[str, int], float, float]] = []
    work, start, end = None, 0.0, 0.0
    # Consecutive spans of the same work are one cell of the lane.
    for span in sorted(run, key=lambda span: span.start_ns):
        label = labels.get(span.instruction)
        if label is None or span.is_wait:
            continue
        if not label.stage_work and label.wait_term != BUBBLE:
            continue
        if label.stage_work != work:
            if work is not None:
                cells.append((work, start, end))
            start = end = span.start_ns
        work, end = label.stage_work, max(end, span.end_ns)
    if work is not None:
        cells.append((work, start, end))
    timings = []
    for (kind, stage), first, last in cells:
        timings.append(
            StageTiming(
                kind=kind,
                stage=stage,
                micro=times[kind, stage],
                start=_NS * (first - begin),
                end=_NS * (last - begin),
            )
        )
        times[kind, stage] += 1
    return tuple(timings)
