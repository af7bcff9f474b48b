"""Goodput: where the wall time of a run went, by phase, attempt and plan.

Goodput is the share of the time since the run began that its final state is made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from statistics import median
from typing import Final

from markupsafe import Markup

from jaxdist.core.run_record import PHASES, Run
from jaxdist.core.text.formatting import format_count, format_duration, format_percent
from jaxdist.core.text.theme import PHASE_FILLS
from jaxdist.launch.report.charts import (
    TIME_UNITS,
    BarChart,
    BarSegment,
    make_bar_chart,
    stacked_bar,
)
from jaxdist.launch.report.header import format_utc
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.run_folder.goodput import RunAttempt
from jaxdist.launch.terminal.run_summary import phases_by_size

_PART_NAMES: Final = {
    "compute": "steps that count",
    "lost": "steps done again",
    "restart": "between attempts",
    "new plan": "for a new plan",
    "other": "in no phase",
}
"""What a part is called where its key is no word for a person."""
_PART_FILLS: Final = {"lost": "lost", "restart": "restart", "new plan": "restart"}


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """An attempt, as a row of the table."""

    began: str
    steps: str
    gap: str
    lost: str
    ended: str


@dataclass(frozen=True, kw_only=True)
class GoodputSection:
    """What the section shows of a run of several attempts."""

    whole: Markup
    rest: BarChart | None
    lines: Sequence[AttemptRow]


def wall_time_charts(run: Run) -> tuple[Markup | None, BarChart | None]:
    """Draw the wall time of the last attempt as one bar, and as a bar for each phase.

    Returns:
        The bar in the order of the phases, the chart longest first; None for either
        where no phase was recorded.
    """
    phases = [(n, run.phases_s[n]) for n in PHASES if run.phases_s.get(n, 0.0) > 0]
    whole, parts, bar = sum(seconds for _, seconds in phases), [], None
    for name, seconds in phases:
        share = format_percent(seconds / whole)
        title = f"{name} {format_duration(seconds)}, {share}"
        fill = PHASE_FILLS[name]
        parts.append(BarSegment(fill=fill, size=seconds, title=title, label=name))
    if parts:
        title = f"Wall time: {'; '.join(part.title for part in parts)}"
        bar = stacked_bar(title, parts)
    # Longest first, and with the phases that only another version knows.
    rows = [
        BarSegment(
            fill=PHASE_FILLS.get(name, "wait"),
            size=seconds,
            title=name,
            label=format_duration(seconds),
        )
        for name, seconds in phases_by_size(run)
    ]
    return bar, make_bar_chart(rows, TIME_UNITS, "wall time")


def goodput_caption(record: RunData) -> Markup:
    """Say which share of the time went into steps that count, and what took most."""
    found = record.goodput
    if not found.wall_s:
        return Markup("Phases were not recorded.")
    share, wall = format_percent(found.fraction), format_duration(found.wall_s)
    if found.attempts == 1:
        text = (
            "<b>{}</b> of {} went into steps that count, in one attempt: nothing was "
            "done again."
        )
        return Markup(text).format(share, wall)
    parts = _parts_s(record)
    between = parts.get("restart", 0.0) + parts.get("new plan", 0.0)
    text = (
        "<b>{}</b> of {} in {} attempts went into steps that count. The time between "
        "attempts took {}, steps done again {}."
    )
    rest = (format_percent(s / found.wall_s) for s in (between, parts.get("lost", 0.0)))
    return Markup(text).format(share, wall, found.attempts, *rest)


def goodput_section(record: RunData) -> GoodputSection | None:
    """Return what is shown of a run of several attempts; None of any other."""
    # One attempt loses nothing: its phases are already in the section on time.
    if record.goodput.attempts < 2:
        return None
    parts, wall = _parts_s(record), record.goodput.wall_s
    whole, rest = [], []
    for name, seconds in parts.items():
        fill = _PART_FILLS.get(name) or PHASE_FILLS.get(name, "wait")
        title = _PART_NAMES.get(name, name)
        segment = BarSegment(fill=fill, size=seconds, title=title, label=title)
        whole.append(segment)
        if name != "compute":
            rest.append(replace(segment, label=format_duration(seconds)))
    rest.sort(key=lambda segment: -segment.size)
    told = ", ".join(f"{one.title} {format_percent(one.size / wall)}" for one in whole)

    lines, gap = [], ""
    for one, after in zip_longest(record.attempts, record.attempts[1:]):
        plan = _next_plan(record, one)
        # An attempt that saved its last step, as at SIGTERM, leaves none to do again.
        ran = one.first_step is not None
        ended = "went down" if one.lost_steps else "saved its last step"
        if not ran:
            ended = "before its first step"
        if plan is not None:
            ended = f"for plan {plan}"
        if after is None:
            ended = record.run.status if record.summarised else "no summary"
        row = AttemptRow(
            began=format_utc(one.start),
            steps=f"{one.first_step:,} to {one.last_step:,}" if ran else "none",
            gap=gap,
            lost=format_count(one.lost_steps),
            ended=ended,
        )
        lines.append(row)
        # Clocks of two hosts may differ by more than the time between their attempts.
        gap = format_duration(max(0.0, after.start - one.end)) if after else ""
    return GoodputSection(
        whole=stacked_bar(f"Wall time: {told}", whole),
        rest=make_bar_chart(rest, TIME_UNITS, "wall time", whole=wall),
        lines=lines,
    )


def _parts_s(record: RunData) -> dict[str, float]:
    """Return seconds by part, in the order of phases; a new plan is no restart."""
    parts = dict(record.goodput.phases_s)
    # Gaps that a change of plan made are taken out of the time of all gaps.
    replans = sum(
        max(0.0, after.start - before.end)
        for before, after in pairwise(record.attempts)
        if _next_plan(record, before) is not None
    )
    if replans:
        parts["new plan"] = min(replans, parts.get("restart", 0.0))
        parts["restart"] = parts.get("restart", 0.0) - parts["new plan"]
    missing = max(0.0, record.goodput.wall_s - sum(parts.values()))
    parts["other"] = parts.get("other", 0.0) + missing
    # Work that counts comes first, then overheads, then what was lost.
    order = [*PHASE_FILLS, "lost", "restart", "new plan"]
    known = sorted(parts, key=lambda n: order.index(n) if n in order else len(order))
    return {name: parts[name] for name in known if parts[name] > 0}


def _next_plan(record: RunData, attempt: RunAttempt) -> str | None:
    """Return the plan for which an attempt ended; None where it ended otherwise."""
    for change in record.changes:
        # The decision may be logged just after the attempt's last phase has ended.
        if change.changed and attempt.start <= change.time <= attempt.end + 1:
            return change.new
    return None


_STEPS_SHOWN: Final = 20
"""Steps after a change whose median is shown."""
_WARMUP_STEPS: Final = 3
"""First steps of an attempt, which are longer than the others."""


@dataclass(frozen=True, kw_only=True)
class ReplanRow:
    """A change, as a row of the table."""

    step: str
    when: str
    why: str
    plans: str
    before: str
    drifted: str
    after: str


def replan_caption(record: RunData) -> Markup:
    """Say how often steps drifted and what came of it, or what looks for drifts."""
    if not record.changes:
        text = (
            "No drift was recorded; <code>--cluster NAME --adapt</code> looks for one."
        )
        return Markup(text)
    counts = (len(record.changes), sum(change.changed for change in record.changes))
    words = {0: "never", 1: "once", 2: "twice"}
    told = (words.get(count, f"{count:,} times") for count in counts)
    text = "Steps drifted <b>{}</b>; the run went on under another plan <b>{}</b>."
    return Markup(text).format(*told)


def replan_rows(record: RunData) -> list[ReplanRow]:
    """Return a row for each change of a run."""
    rows = []
    for change in record.changes:
        plans = f"{change.old} stays" if change.old else "none sought"
        after = None
        if change.changed:
            plans = f"{change.old} to {change.new}"
            # The change was decided in the attempt before: the first one that starts
            # later and makes a step runs under the new plan.
            begun = (s.first_step for s in record.attempts if s.start >= change.time)
            first = next((step for step in begun if step is not None), None)
            if first is not None:
                # First steps set up connections and are longer than all others.
                settled = range(
                    first + _WARMUP_STEPS, first + _WARMUP_STEPS + _STEPS_SHOWN
                )
                times = [r["step_s"] for r in record.train if r["step"] in settled]
                after = median(times) if times else None
        before, drifted, now = (
            "" if seconds is None else format_duration(seconds)
            for seconds in (change.pace_s, change.drifted_s, after)
        )
        row = ReplanRow(
            step=format_count(change.step),
            when=format_utc(change.time),
            why=change.why or "links and devices as at the start",
            plans=plans,
            before=before,
            drifted=drifted,
            after=now,
        )
        rows.append(row)
    return rows
