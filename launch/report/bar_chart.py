"""Bars from zero: the parts of a whole, predicted over measured, rows on one axis.

Three looks tell where a number is from: hollow is predicted, half tone was read from
the compiled program, filled was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.report.svg import (
    grid_lines,
    labelled_svg,
    percent_length,
    tag,
    tick_labels,
    ticks,
)

TIME_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
BYTE_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@dataclass(frozen=True, kw_only=True)
class BarSegment:
    """A part of a bar."""

    fill: str
    """Name of its fill in `jaxdist.core.text.theme`."""
    size: float
    """Length in the unit of the bar."""
    title: str
    """What it is and how much, shown on hover."""
    label: str
    """What is written in it or behind it."""
    half: bool = False
    """Whether it was read from the compiled program: half tone."""
    hollow: bool = False
    """Whether it was predicted."""


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """A labelled bar, and the share of the whole it stands for."""

    name: str
    svg: Markup
    share: str


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Rows that share one axis."""

    rows: Sequence[BarRow]
    axis: Markup
    unit: str


def stacked_bar(title: str, segments: Sequence[BarSegment]) -> Markup:
    """Draw parts of a whole as one bar over the full width."""
    # Parts that are all zero make an empty bar and not a division by zero.
    whole = sum(s.size for s in segments) or 1.0
    marks, x = [], 0.0
    for segment in segments:
        share = segment.size / whole
        marks.append(_rect(segment, x, share, y=1, height=28))
        # A letter takes at most some 1.6 % of the width. A label that does not fit its
        # part, with the room of a letter on either side, is left to the title.
        if share > 0.016 * (len(segment.label) + 2):
            look, middle = f"in in-{segment.fill}", percent_length(x + share / 2)
            place = {"x": middle, "y": 19.5, "text_anchor": "middle"}
            marks.append(tag("text", segment.label, class_=look, **place))
        x += share
    return labelled_svg(title, *marks, height=30)


def bar_pair(
    title: str,
    fill: str,
    predicted: float,
    measured: float | None,
    *,
    half: bool = False,
) -> Markup:
    """Draw a hollow bar above a filled one, each as a share of the full width.

    Args:
        title: what both are, with their numbers.
        fill: name of their fill in `jaxdist.core.text.theme`.
        predicted: length of the hollow bar.
        measured: length of the filled bar; None draws none.
        half: draw the lower bar in half tone, as read from the compiled program.
    """
    marks = [(predicted, "p", 4, 9)]
    if measured is not None:
        marks.append((measured, "m half" if half else "m", 16, 10))
    parts = [tag("line", class_="ax", x1=0, x2=0, y1=0, y2=30)]
    for share, tone, y, height in marks:
        size = {"width": percent_length(share), "height": height}
        parts.append(tag("rect", class_=f"{tone} t-{fill}", x=0, y=y, **size))
    return labelled_svg(title, *parts, height=30)


def make_bar_chart(
    segments: Sequence[BarSegment],
    units: Sequence[tuple[float, str]],
    quantity: str,
    whole: float | None = None,
    *,
    shares: bool = True,
) -> BarChart | None:
    """Draw a row a bar, all on one axis; None where there is nothing to draw.

    Args:
        segments: bars, in their order, each in the unit of the last of `units`.
        units: how much each unit is, and its name, the largest first.
        quantity: what the axis measures.
        whole: what shares are of; None: of all bars together.
        shares: write beside each bar its share of the whole.
    """
    longest = max((mark.size for mark in segments), default=0.0)
    if not longest:
        return None
    whole = whole or sum(mark.size for mark in segments)
    # The largest unit in which the longest bar is at least one: the axis then has short
    # numbers, and all rows the same ones.
    scale, unit = next((u for u in units if longest >= u[0]), units[-1])
    axis = ticks(0.0, longest / scale)

    rows = []
    for mark in segments:
        end = mark.size / scale / axis[-1]
        bar = _rect(mark, 0, end, y=5, height=16)
        place = {"x": percent_length(end), "dx": 7, "y": 17.5}
        value = tag("text", mark.label, class_="val", **place)
        # The bar hides the grid, its value at the end is written over both.
        drawn = labelled_svg(
            f"{mark.title}: {mark.label}", *grid_lines(axis, 26), bar, value, height=26
        )
        share = mark.size / whole
        # What took some time must not read as having taken none.
        text = format_percent(share) if share >= 0.0005 else "< 0.1 %"
        rows.append(BarRow(name=mark.title, svg=drawn, share=text if shares else ""))

    numbers = tick_labels(axis, 14)
    below = tag("svg", *numbers, width="100%", height=18, aria_hidden="true")
    return BarChart(rows=rows, axis=below, unit=f"{quantity}, {unit}")


def _rect(
    segment: BarSegment, x: float, width: float, *, y: int, height: int
) -> Markup:
    tone = "p" if segment.hollow else "m half" if segment.half else "m"
    return tag(
        "rect",
        tag("title", segment.title),
        class_=f"{tone} t-{segment.fill}",
        x=percent_length(x),
        y=y,
        width=percent_length(width),
        height=height,
    )
