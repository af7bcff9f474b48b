"""Bars from zero: parts of a whole, and rows that share one axis.

They use per cent across and pixels down, so text keeps its size at any width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from jaxdist.launch.report.svg import format_tick, labelled_svg, percent_length, tag


@dataclass(frozen=True, kw_only=True)
class BarSegment:
    """A part of a bar."""

    fill: str
    """Name of its fill in `jaxdist.core.text.theme`."""
    size: float
    """Length in the unit of the bar."""
    title: str
    """What it is and how much, shown on touch."""
    label: str
    """What is written in it or behind it."""
    half: bool = False
    """Whether it was read from the compiled program: half tone."""
    hollow: bool = False
    """Whether it was predicted."""


def stacked_bar(title: str, segments: Sequence[BarSegment]) -> Markup:
    """Draw parts of a whole as one measured bar over the full width."""
    whole = sum(s.size for s in segments) or 1.0
    marks, x = [], 0.0
    for segment in segments:
        share = segment.size / whole
        marks.append(_rect(segment, x, share, y=1, height=28))
        if share > 0.016 * (len(segment.label) + 2):
            marks.append(_inner_label(segment, x + share / 2))
        x += share
    return labelled_svg(title, *marks, height=30)


def bar_row(mark: BarSegment, scale: float, axis: Sequence[float]) -> Markup:
    """Draw one bar from zero, with its value at the end and the grid of its axis.

    Args:
        mark: the bar; its label is written behind it.
        scale: the unit of the axis, in the unit of the bar.
        axis: ticks of the axis.
    """
    share = mark.size / scale / axis[-1]
    value = tag("text", mark.label, class_="val", x=percent_length(share), dx=7, y=17.5)
    bar = _rect(mark, 0, share, y=5, height=16)
    parts = (*_grid_lines(axis, 26), bar, value)
    return labelled_svg(f"{mark.title}: {mark.label}", *parts, height=26)


def bar_axis(axis: Sequence[float]) -> Markup:
    """Draw the numbers below bars that share an axis."""
    texts = [
        tag(
            "text",
            format_tick(tick),
            class_="tick",
            x=percent_length(tick / axis[-1]),
            y=14,
            text_anchor="middle" if tick else "start",
        )
        for tick in axis
    ]
    return tag("svg", *texts, width="100%", height=18, aria_hidden="true")


def _rect(
    segment: BarSegment, x: float, width: float, *, y: int, height: int
) -> Markup:
    return tag(
        "rect",
        tag("title", segment.title),
        class_=f"{_tone_class(segment)} t-{segment.fill}",
        x=percent_length(x),
        y=y,
        width=percent_length(width),
        height=height,
    )


def _tone_class(segment: BarSegment) -> str:
    return "p" if segment.hollow else "m half" if segment.half else "m"


def _inner_label(segment: BarSegment, x: float) -> Markup:
    return tag(
        "text",
        segment.label,
        class_=f"in in-{segment.fill}",
        x=percent_length(x),
        y=19.5,
        text_anchor="middle",
    )


def _grid_lines(axis: Sequence[float], height: int) -> list[Markup]:
    places = (percent_length(tick / axis[-1]) for tick in axis)
    return [tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height) for x in places]
