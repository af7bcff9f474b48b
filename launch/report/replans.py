"""Replanned: drifts of a run, their reasons, and the plans that it went on under."""

from dataclasses import dataclass
from statistics import median
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_duration
from jaxdist.launch.report.drift_log import PlanChange
from jaxdist.launch.report.header import format_utc
from jaxdist.launch.report.run_record import RunData

_STEPS_SHOWN: Final = 20
"""Steps after a change whose median is shown."""
_WARMUP_STEPS: Final = 3
"""First steps of a sitting, which are longer than the others."""


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
    """Say how often steps drifted and what came of it, or what looks for it."""
    changes = record.changes
    if not changes:
        text = (
            "No drift was recorded; <code>--cluster NAME --adapt</code> looks for one."
        )
        return Markup(text)
    went = sum(change.changed for change in changes)
    text = "Steps drifted <b>{}</b>; the run went on under another plan <b>{}</b>."
    return Markup(text).format(_count_text(len(changes)), _count_text(went))


def _count_text(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number:,} times")


def replan_rows(record: RunData) -> list[ReplanRow]:
    """Return a row a change of a run."""
    return [_replan_row(change, record) for change in record.changes]


def _replan_row(change: PlanChange, record: RunData) -> ReplanRow:
    plans = f"{change.old} stays" if change.old else "none sought"
    plans = f"{change.old} to {change.new}" if change.changed else plans
    return ReplanRow(
        step=format_count(change.step),
        when=format_utc(change.time),
        why=change.why or "links and devices as at the start",
        plans=plans,
        before=_format_time(change.pace_s),
        drifted=_format_time(change.drifted_s),
        after=_format_time(_step_s_after(change, record)),
    )


def _step_s_after(change: PlanChange, record: RunData) -> float | None:
    """Return the median of the first steps of the sitting that came of a change."""
    begun = (
        one.first_step
        for one in record.sittings
        if one.start >= change.time and one.first_step is not None
    )
    first = next(begun, None)
    if not change.changed or first is None:
        return None
    settled = range(first + _WARMUP_STEPS, first + _WARMUP_STEPS + _STEPS_SHOWN)
    times = [row["step_s"] for row in record.train if row["step"] in settled]
    return median(times) if times else None


def _format_time(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)
