"""Replay: a schedule's table with the seconds of uneven stages.

The program that runs a table goes from exchange to exchange with all devices together,
so a beat is as long as who works longest in it:

    step = sum over beats of max over devices of seconds(works)

The bubble is what is left of that for the device that works longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.core.plan import Plan
from jaxdist.oracle.work import Spent
from jaxdist.pipeline.planned import timetable
from jaxdist.pipeline.work import Work


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A step as its table plays: how devices along the pipe axis hold each other up."""

    device: int
    """Who works longest."""
    busy: float
    """Seconds that it works."""
    waits: float
    """Seconds that it waits for others."""

    @property
    def seconds(self) -> float:
        """Seconds of all beats."""
        return self.busy + self.waits


def replayed(plan: Plan, microbatches: int, stages: Sequence[Spent]) -> Replay:
    """Return what the busiest device works in a step, and what it waits.

    Args:
        plan: the layout.
        microbatches: of a step.
        stages: seconds of each stage in one microbatch.
    """
    if plan.stages == 1:
        (one,) = stages
        busy = microbatches * (one.forward + one.backward)
        return Replay(device=0, busy=busy, waits=0.0)
    made = timetable(plan, microbatches)
    has_weights = any(w and w.kind == "weights" for row in made.ticks for w in row)

    def took(work: Work | None) -> float:
        return 0.0 if work is None else work_seconds(work, stages, has_weights)

    beats = [
        [sum(map(took, works)) for works in zip(*beat, strict=True)]
        for beat in made.beats
    ]
    works = [sum(own) for own in zip(*beats, strict=True)]
    busy = max(works)
    waits = sum(map(max, beats)) - busy
    return Replay(device=works.index(busy), busy=busy, waits=waits)


def work_seconds(work: Work, stages: Sequence[Spent], has_weights: bool) -> float:
    """Return what one work takes; gradients of weights are half of a backward pass."""
    stage = stages[work.stage]
    if work.kind == "forward":
        return stage.forward
    return stage.backward / (2 if has_weights else 1)
