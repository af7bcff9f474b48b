"""Sittings: the share of the time since a run began that its final state is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_duration, format_percent
from jaxdist.core.text.theme import PHASE_FILLS
from jaxdist.launch.report.bar_chart import BarSegment, stacked_bar
from jaxdist.launch.report.header import format_utc
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.time_and_bytes import TIME_UNITS, BarChart, make_bar_chart
from jaxdist.launch.run_folder.goodput import Goodput, RunAttempt

_PART_NAMES: Final = {
    "compute": "steps that count",
    "lost": "steps done again",
    "restart": "between sittings",
    "new plan": "for a new plan",
    "other": "in no phase",
}
"""What a part is called where its key is no word for a person."""
_PART_FILLS: Final = {"lost": "lost", "restart": "restart", "new plan": "restart"}


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """A sitting, as a row of the table."""

    began: str
    steps: str
    gap: str
    lost: str
    ended: str


@dataclass(frozen=True, kw_only=True)
class GoodputSection:
    """What the section shows of a run of several sittings."""

    whole: Markup
    rest: BarChart | None
    lines: Sequence[AttemptRow]


def goodput_caption(record: RunData) -> Markup:
    """Say which share of the time went into steps that count, and what took most."""
    found = record.goodput
    if not found.wall_s:
        return Markup("Phases were not recorded.")
    share, wall = format_percent(found.fraction), format_duration(found.wall_s)
    if found.attempts == 1:
        text = (
            "<b>{}</b> of {} went into steps that count, in one sitting: nothing was "
            "done again."
        )
        return Markup(text).format(share, wall)
    parts = _parts_s(record)
    again = parts.get("lost", 0.0)
    between = parts.get("restart", 0.0) + parts.get("new plan", 0.0)
    text = (
        "<b>{}</b> of {} in {} sittings went into steps that count. The time between "
        "sittings took {}, steps done again {}."
    )
    return Markup(text).format(
        share,
        wall,
        found.attempts,
        format_percent(between / found.wall_s),
        format_percent(again / found.wall_s),
    )


def goodput_section(record: RunData) -> GoodputSection | None:
    """Return what is shown of a run of several sittings; None of any other."""
    if record.goodput.attempts < 2:
        return None
    parts, wall = _parts_s(record), record.goodput.wall_s
    named = {name: _PART_NAMES.get(name, name) for name in parts}
    told = (f"{named[n]} {format_percent(s / wall)}" for n, s in parts.items())
    longest = sorted(parts.items(), key=lambda part: -part[1])
    rest = [_segment(n, s, format_duration(s)) for n, s in longest if n != "compute"]
    return GoodputSection(
        whole=stacked_bar(
            f"Wall time: {', '.join(told)}",
            [_segment(name, s, named[name]) for name, s in parts.items()],
        ),
        rest=make_bar_chart(rest, TIME_UNITS, "wall time", whole=wall),
        lines=_attempt_rows(record),
    )


def _parts_s(record: RunData) -> dict[str, float]:
    """Return seconds by part, in the order of phases; a re-plan is no restart."""
    found: Goodput = record.goodput
    parts = dict(found.phases_s)
    replans = _restart_s(record, replanned=True)
    if replans:
        parts["new plan"] = min(replans, parts.get("restart", 0.0))
        parts["restart"] = parts.get("restart", 0.0) - parts["new plan"]
    covered = sum(parts.values())
    parts["other"] = parts.get("other", 0.0) + max(0.0, found.wall_s - covered)
    order = [*PHASE_FILLS, "lost", "restart", "new plan"]
    known = sorted(parts, key=lambda n: order.index(n) if n in order else len(order))
    return {name: parts[name] for name in known if parts[name] > 0}


def _restart_s(record: RunData, *, replanned: bool) -> float:
    pairs = pairwise(record.sittings)
    return sum(
        max(0.0, after.start - before.end)
        for before, after in pairs
        if (_next_plan(record, before) is not None) == replanned
    )


def _next_plan(record: RunData, sitting: RunAttempt) -> str | None:
    """Return the plan for which a sitting ended; None where it ended otherwise."""
    return next(
        (
            change.new
            for change in record.changes
            if change.changed and sitting.start <= change.time <= sitting.end + 1
        ),
        None,
    )


def _segment(name: str, seconds: float, label: str) -> BarSegment:
    fill = _PART_FILLS.get(name) or PHASE_FILLS.get(name, "wait")
    return BarSegment(
        fill=fill, size=seconds, title=_PART_NAMES.get(name, name), label=label
    )


def _attempt_rows(record: RunData) -> list[AttemptRow]:
    found = record.sittings
    gaps = [None, *(b.start - a.end for a, b in pairwise(found))]
    last = len(found) - 1
    return [
        AttemptRow(
            began=format_utc(one.start),
            steps="none" if one.first_step is None else _step_range(one),
            gap="" if gap is None else format_duration(max(0.0, gap)),
            lost=format_count(one.lost_steps),
            ended=_outcome(record, one, is_last=number == last),
        )
        for number, (one, gap) in enumerate(zip(found, gaps, strict=True))
    ]


def _step_range(one: RunAttempt) -> str:
    return f"{one.first_step:,} to {one.last_step:,}"


def _outcome(record: RunData, one: RunAttempt, *, is_last: bool) -> str:
    if is_last:
        return record.run.status if record.summarised else "no summary"
    plan = _next_plan(record, one)
    if plan is not None:
        return f"for plan {plan}"
    return "went down" if one.lost_steps else "saved its last step"
