"""Replay: a schedule's table with the seconds of uneven stages.

The program that runs a table goes from tick to tick with all devices together, so a
tick is as long as the longest work in it:

    step = sum over ticks of max over devices of seconds(work)

The bubble is what is left of that for the device that works longest.
"""

from collections.abc import Sequence

from jaxdist.core.plan import Plan
from jaxdist.oracle.work import Spent
from jaxdist.pipeline.planned import timetable
from jaxdist.pipeline.work import Ticks, Work


def replayed(
    plan: Plan, microbatches: int, stages: Sequence[Spent]
) -> tuple[float, float]:
    """Return the seconds that the busiest device works in a step, and those it waits.

    Args:
        plan: the layout.
        microbatches: of a step.
        stages: seconds of each stage in one microbatch.
    """
    if plan.stages == 1:
        (one,) = stages
        return microbatches * (one.forward + one.backward), 0.0
    ticks = timetable(plan, microbatches).ticks
    has_weights = any(w and w.kind == "weights" for row in ticks for w in row)

    def took(work: Work | None) -> float:
        return 0.0 if work is None else work_seconds(work, stages, has_weights)

    busiest = max(map(sum, zip(*([took(w) for w in row] for row in ticks))))
    return busiest, _length(ticks, stages, has_weights) - busiest


def _length(ticks: Ticks, stages: Sequence[Spent], has_weights: bool) -> float:
    return sum(
        max(work_seconds(w, stages, has_weights) if w else 0.0 for w in row)
        for row in ticks
    )


def work_seconds(work: Work, stages: Sequence[Spent], has_weights: bool) -> float:
    """Return what one work takes; gradients of weights are half of a backward pass."""
    stage = stages[work.stage]
    if work.kind == "forward":
        return stage.forward
    return stage.backward / (2 if has_weights else 1)
