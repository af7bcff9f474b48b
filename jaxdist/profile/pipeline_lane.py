"""A lane: when a device worked for which stage of a pipeline, in one profiled step."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from jaxdist.core.step_breakdown import BUBBLE, StageTiming
from jaxdist.profile.instruction_term import InstructionLabel
from jaxdist.profile.xplane import TraceSpan


def run_duration_ns(run: Sequence[TraceSpan]) -> float:
    """Return the nanoseconds of a step."""
    return max(span.end_ns for span in run) - min(span.start_ns for span in run)


def pipeline_lane(
    run: Sequence[TraceSpan], labels: Mapping[str, InstructionLabel]
) -> tuple[StageTiming, ...]:
    """Return the work for stages in a step, none where there are no stages.

    Args:
        run: operations of one step on one device.
        labels: by the name of the instruction.
    """
    begin, times = min(span.start_ns for span in run), Counter[tuple[str, int]]()
    cells = []
    for work, start, end in _work_intervals(run, labels):
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
    for span in sorted(run, key=lambda span: span.start_ns):
        part = parts.get(span.instruction)
        if (
            part is None
            or span.is_wait
            or not (part.stage_work or part.wait_term == BUBBLE)
        ):
            continue
        if work is not None and part.stage_work != work:
            yield work, start, end
        if part.stage_work != work:
            start = end = span.start_ns
        work, end = part.stage_work, max(end, span.end_ns)
    if work is not None:
        yield work, start, end
