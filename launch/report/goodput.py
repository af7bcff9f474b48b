"""Sittings: the share of the time since a run began that its final state is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import count, duration, percent
from jaxdist.core.text.theme import FILL_OF_PHASE
from jaxdist.launch.report.bar_chart import BarSegment, stack
from jaxdist.launch.report.header import utc
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.time_and_bytes import TIMES, BarChart, bars_of
from jaxdist.launch.run_folder.goodput import Goodput, RunAttempt

_NAMES: Final = {
    "compute": "steps that count",
    "lost": "steps done again",
    "restart": "between sittings",
    "new plan": "for a new plan",
    "other": "in no phase",
}
"""What a part is called where its key is no word for a person."""
_FILLS: Final = {"lost": "lost", "restart": "restart", "new plan": "restart"}


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


def sentence(record: RunData) -> Markup:
    """Say which share of the time went into steps that count, and what took most."""
    found = record.goodput
    if not found.wall_s:
        return Markup("Phases were not recorded.")
    share, wall = percent(found.share), duration(found.wall_s)
    if found.sittings == 1:
        text = (
            "<b>{}</b> of {} went into steps that count, in one sitting: nothing was "
            "done again."
        )
        return Markup(text).format(share, wall)
    parts = _parts(record)
    again = parts.get("lost", 0.0)
    between = parts.get("restart", 0.0) + parts.get("new plan", 0.0)
    text = (
        "<b>{}</b> of {} in {} sittings went into steps that count. The time between "
        "sittings took {}, steps done again {}."
    )
    return Markup(text).format(
        share,
        wall,
        found.sittings,
        percent(between / found.wall_s),
        percent(again / found.wall_s),
    )


def sittings(record: RunData) -> GoodputSection | None:
    """Return what is shown of a run of several sittings; None of any other."""
    if record.goodput.sittings < 2:
        return None
    parts, wall = _parts(record), record.goodput.wall_s
    named = {name: _NAMES.get(name, name) for name in parts}
    told = (f"{named[n]} {percent(s / wall)}" for n, s in parts.items())
    longest = sorted(parts.items(), key=lambda part: -part[1])
    rest = [_mark(n, s, duration(s)) for n, s in longest if n != "compute"]
    return GoodputSection(
        whole=stack(
            f"Wall time: {', '.join(told)}",
            [_mark(name, s, named[name]) for name, s in parts.items()],
        ),
        rest=bars_of(rest, TIMES, "wall time", whole=wall),
        lines=_lines(record),
    )


def _parts(record: RunData) -> dict[str, float]:
    """Return seconds by part, in the order of phases; a re-plan is no restart."""
    found: Goodput = record.goodput
    parts = dict(found.parts_s)
    replans = _between(record, adapted=True)
    if replans:
        parts["new plan"] = min(replans, parts.get("restart", 0.0))
        parts["restart"] = parts.get("restart", 0.0) - parts["new plan"]
    covered = sum(parts.values())
    parts["other"] = parts.get("other", 0.0) + max(0.0, found.wall_s - covered)
    order = [*FILL_OF_PHASE, "lost", "restart", "new plan"]
    known = sorted(parts, key=lambda n: order.index(n) if n in order else len(order))
    return {name: parts[name] for name in known if parts[name] > 0}


def _between(record: RunData, *, adapted: bool) -> float:
    pairs = pairwise(record.sittings)
    return sum(
        max(0.0, after.start - before.end)
        for before, after in pairs
        if (_plan_after(record, before) is not None) == adapted
    )


def _plan_after(record: RunData, sitting: RunAttempt) -> str | None:
    """Return the plan for which a sitting ended; None where it ended otherwise."""
    return next(
        (
            change.new
            for change in record.changes
            if change.changed and sitting.start <= change.time <= sitting.end + 1
        ),
        None,
    )


def _mark(name: str, seconds: float, label: str) -> BarSegment:
    fill = _FILLS.get(name) or FILL_OF_PHASE.get(name, "wait")
    return BarSegment(
        fill=fill, size=seconds, title=_NAMES.get(name, name), label=label
    )


def _lines(record: RunData) -> list[AttemptRow]:
    found = record.sittings
    gaps = [None, *(b.start - a.end for a, b in pairwise(found))]
    last = len(found) - 1
    return [
        AttemptRow(
            began=utc(one.start),
            steps="none" if one.first is None else _span(one),
            gap="" if gap is None else duration(max(0.0, gap)),
            lost=count(one.lost),
            ended=_ended(record, one, is_last=number == last),
        )
        for number, (one, gap) in enumerate(zip(found, gaps, strict=True))
    ]


def _span(one: RunAttempt) -> str:
    return f"{one.first:,} to {one.last:,}"


def _ended(record: RunData, one: RunAttempt, *, is_last: bool) -> str:
    if is_last:
        return record.run.status if record.summarised else "no summary"
    plan = _plan_after(record, one)
    if plan is not None:
        return f"for plan {plan}"
    return "went down" if one.lost else "saved its last step"
