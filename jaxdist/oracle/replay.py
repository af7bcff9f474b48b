"""Replay: a schedule's table with the seconds of uneven stages.

The program that runs a table goes from exchange to exchange with all devices together,
so a beat is as long as who works longest in it:

    step = sum over beats of max over devices of seconds(works)

The bubble is what is left of that for the device that works longest.
"""

from collections.abc import Sequence

from jaxdist.core.plan import Plan
from jaxdist.oracle.work import Spent
from jaxdist.pipeline.planned import timetable
from jaxdist.pipeline.work import Work


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
    made = timetable(plan, microbatches)
    has_weights = any(w and w.kind == "weights" for row in made.ticks for w in row)

    def took(work: Work | None) -> float:
        return 0.0 if work is None else work_seconds(work, stages, has_weights)

    beats = [
        [sum(map(took, works)) for works in zip(*beat, strict=True)]
        for beat in made.beats
    ]
    busiest = max(map(sum, zip(*beats, strict=True)))
    return busiest, sum(map(max, beats)) - busiest


def work_seconds(work: Work, stages: Sequence[Spent], has_weights: bool) -> float:
    """Return what one work takes; gradients of weights are half of a backward pass."""
    stage = stages[work.stage]
    if work.kind == "forward":
        return stage.forward
    return stage.backward / (2 if has_weights else 1)
