"""Goodput: the share of a run's wall clock that its final state is made of.

attempt 1   compile, steps 1 ... 7, killed        steps 6 and 7 are lost
            (nothing runs)                        restart
attempt 2   compile, restore, steps 6 ... 60      goodput: steps 1 ... 5 and 6 ... 60
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from jaxdist.core.text.formatting import format_duration, format_percent

SpanRow = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Where the wall clock of all attempts of a run went, in seconds."""

    attempts: int
    """Times that the run was started."""
    wall_s: float
    """From the first phase of the first attempt to the end of the last one."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """By phase; `lost` is computing that was done again, `restart` the time between
    two attempts. What is missing to the wall clock was in no phase."""

    @property
    def fraction(self) -> float:
        """Computing that was not done again, as a share of the wall clock."""
        return self.phases_s.get("compute", 0.0) / self.wall_s if self.wall_s else 0.0

    @property
    def summary_line(self) -> str:
        """The same in one line."""
        ordered = sorted(self.phases_s.items(), key=lambda part: -part[1])
        parts = ", ".join(f"{name} {s:,.1f} s" for name, s in ordered if s >= 0.05)
        return (
            f"goodput   {format_percent(self.fraction)} of "
            f"{format_duration(self.wall_s)} in "
            f"{self.attempts} attempts: {parts}"
        )


@dataclass(frozen=True, kw_only=True)
class RunAttempt:
    """One time that a run was started, Unix seconds and steps."""

    start: float
    """Beginning of its first phase."""
    end: float
    """End of the last one that ended."""
    first_step: int | None
    """The first step that it made, from 1; None where it made none."""
    last_step: int | None
    """The last one."""
    lost_steps: int
    """Of its steps, those that a later attempt made again."""


def compute_goodput(spans: Sequence[SpanRow]) -> Goodput:
    """Add up the phases of a run.

    Args:
        spans: rows of `spans.jsonl`, in their order.
    """
    attempts = _completed_spans(spans)
    if not attempts:
        return Goodput(attempts=0, wall_s=0.0)
    last = _last_attempt_by_step(attempts)
    parts: dict[str, float] = defaultdict(float)
    # What a later attempt computed again, from an older checkpoint, is lost.
    for number, one in enumerate(attempts):
        for row in one:
            again = row["name"] == "compute" and last[row["step"]] > number
            parts["lost" if again else row["name"]] += row["seconds"]
    for before, after in pairwise(attempts):
        # Two attempts may be on two hosts whose clocks differ.
        parts["restart"] += max(0.0, after[0]["start"] - _end_time(before))
    wall = _end_time(attempts[-1]) - attempts[0][0]["start"]
    return Goodput(attempts=len(attempts), wall_s=wall, phases_s=dict(parts))


def list_attempts(spans: Sequence[SpanRow]) -> tuple[RunAttempt, ...]:
    """Return the attempts of a run, in their order.

    Args:
        spans: rows of `spans.jsonl`, in their order.
    """
    found = _completed_spans(spans)
    last = _last_attempt_by_step(found)
    attempts = []
    for number, rows in enumerate(found):
        steps = [row["step"] for row in rows if row["name"] == "compute"]
        attempts.append(
            RunAttempt(
                start=rows[0]["start"],
                end=_end_time(rows),
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                lost_steps=sum(last[step] > number for step in steps),
            )
        )
    return tuple(attempts)


def _completed_spans(spans: Sequence[SpanRow]) -> list[list[SpanRow]]:
    """Return the phases that ended, by attempt; each attempt has its beginning."""
    attempts: list[list[SpanRow]] = [[]]
    for row in spans:
        # Each attempt compiles before its first step, and says so when it begins to:
        # that row is the only mark between two attempts.
        if row["name"] == "compile" and row["step"] == 0 and "begin" in row:
            # An attempt that is killed in its compile leaves nothing else.
            attempts.append([{**row, "seconds": 0.0}])
        elif "seconds" in row:
            attempts[-1].append(row)
    return [rows for rows in attempts if rows]


def _last_attempt_by_step(attempts: Sequence[Sequence[SpanRow]]) -> dict[int, int]:
    """Return the number of the attempt that made a step last, by step."""
    return {
        row["step"]: number
        for number, one in enumerate(attempts)
        for row in one
        if row["name"] == "compute"
    }


def _end_time(attempt: Sequence[SpanRow]) -> float:
    return max(row["start"] + row["seconds"] for row in attempt)
