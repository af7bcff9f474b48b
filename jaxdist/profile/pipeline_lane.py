"""A lane: when a device worked for which stage of a pipeline, in one profiled step."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxdist.core.step_breakdown import BUBBLE, StageTiming
from jaxdist.profile.instruction_term import InstructionLabel
from jaxdist.profile.xplane import TraceSpan


def run_duration_ns(run: Sequence[TraceSpan]) -> float:
    """Return the nanoseconds of a step."""
    return max(span.end for span in run) - min(span.start for span in run)


def pipeline_lane(
    run: Sequence[TraceSpan], parts: Mapping[str, InstructionLabel]
) -> tuple[StageTiming, ...]:
    """Return the work for stages in a step, none where there are no stages.

    Args:
        run: operations of one step on one device.
        parts: by the name of the instruction.
    """
    begin, times = min(span.start for span in run), Counter[tuple[str, int]]()
    cells = []
    for work, start, end in _work_intervals(run, parts):
        cells.append(
            StageTiming(
                kind=work[0],
                stage=work[1],
                micro=times[work],
                start=1e-9 * (start - begin),
                end=1e-9 * (end - begin),
            )
        )
        times[work] += 1
    return tuple(cells)


def _work_intervals(
    run: Sequence[TraceSpan], parts: Mapping[str, InstructionLabel]
) -> Iterator[tuple[tuple[str, int], float, float]]:
    """Yield each work with its ends: between two of them something is handed on."""
    work, start, end = None, 0.0, 0.0
    for span in sorted(run, key=lambda span: span.start):
        part = parts.get(span.op)
        if part is None or span.waits or not (part.of_stage or part.waits == BUBBLE):
            continue
        if work is not None and part.of_stage != work:
            yield work, start, end
        if part.of_stage != work:
            start = end = span.start
        work, end = part.of_stage, max(end, span.end)
    if work is not None:
        yield work, start, end
