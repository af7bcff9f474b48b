"""The bars of the page: where the wall time and the bytes of a step went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from jaxdist.core.run_record import PHASES, Run
from jaxdist.core.text.formatting import format_duration, format_percent
from jaxdist.core.text.theme import PHASE_FILLS
from jaxdist.launch.report.bar_chart import BarSegment, bar_axis, bar_row, stacked_bar
from jaxdist.launch.report.svg import ticks
from jaxdist.launch.terminal.run_summary import phases_by_size

TIME_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
BYTE_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A labelled bar, and the share of the whole it stands for."""

    name: str
    svg: Markup
    share: str


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Rows that share one axis, longest first."""

    rows: Sequence[BarRow]
    axis: Markup
    unit: str


def wall_time_bar(run: Run) -> Markup | None:
    """Draw the wall time as one bar, in the order of the phases."""
    phases = [(n, run.phases_s[n]) for n in PHASES if run.phases_s.get(n, 0.0) > 0]
    if not phases:
        return None
    whole = sum(seconds for _, seconds in phases)
    parts = [
        BarSegment(
            fill=PHASE_FILLS[name],
            size=seconds,
            title=f"{name} {format_duration(seconds)}, "
            f"{format_percent(seconds / whole)}",
            label=name,
        )
        for name, seconds in phases
    ]
    return stacked_bar(f"Wall time: {'; '.join(part.title for part in parts)}", parts)


def phase_chart(run: Run) -> BarChart | None:
    """Draw a bar for each phase."""
    marks = [
        BarSegment(
            fill=PHASE_FILLS.get(name, "wait"),
            size=seconds,
            title=name,
            label=format_duration(seconds),
        )
        for name, seconds in phases_by_size(run)
    ]
    return make_bar_chart(marks, TIME_UNITS, "wall time")


def make_bar_chart(
    segments: Sequence[BarSegment],
    units: Sequence[tuple[float, str]],
    quantity: str,
    whole: float | None = None,
) -> BarChart | None:
    """Draw a row a mark, all on one axis; None where there is nothing to draw.

    Args:
        segments: bars, in their order, each in the unit of the last of `units`.
        units: how much each unit is, and its name, the largest first.
        quantity: what the axis has.
        whole: what shares are of; None: of all marks together.
    """
    longest = max((mark.size for mark in segments), default=0.0)
    if not longest:
        return None
    whole = whole or sum(mark.size for mark in segments)
    scale, unit = next((u for u in units if longest >= u[0]), units[-1])
    axis = ticks(0.0, longest / scale)
    rows = [
        BarRow(
            name=mark.title,
            svg=bar_row(mark, scale, axis),
            share=_format_share(mark.size / whole),
        )
        for mark in segments
    ]
    return BarChart(rows=rows, axis=bar_axis(axis), unit=f"{quantity}, {unit}")


def _format_share(share: float) -> str:
    """Write a share; one below the last digit is not shown as zero."""
    return format_percent(share) if share >= 0.0005 else "< 0.1 %"
