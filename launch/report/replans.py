"""Replanned: drifts of a run, their reasons, and the plans that it went on under."""

from dataclasses import dataclass
from statistics import median
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_duration
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
            # The change was decided in the sitting before: the first one that starts
            # later and makes a step runs under the new plan.
            begun = (s.first_step for s in record.sittings if s.start >= change.time)
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
