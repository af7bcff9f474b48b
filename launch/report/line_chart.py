"""Curves over one axis: the lines are stretched to the width, their labels are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from jaxdist.launch.report.svg import (
    format_tick,
    join,
    labelled_svg,
    percent_length,
    tag,
)

PLOT_HEIGHT: Final = 200
_MAX_DOTS: Final = 40


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a plot."""

    stroke: str
    """Name of its colour in `jaxdist.core.text.theme`."""
    points: Sequence[tuple[float, float]]
    """(x, y), x growing."""
    label: str
    """What it is and where it ends, written beside its end."""
    peak: tuple[float, float] | None = None
    """Where the label stands instead, if not at the end."""


def draw_line_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_max: float,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    resume_steps: Sequence[float] = (),
    labels_below: bool = False,
) -> Markup:
    """Draw curves over one axis.

    Args:
        title: what is shown, with its numbers.
        curves: at least one, each with at least one point.
        x_max: end of the horizontal axis, which begins at zero.
        x_ticks: ticks of the horizontal axis.
        y_ticks: ticks of the vertical axis; first and last are its ends.
        resume_steps: where to draw a dotted line: the run was resumed.
        labels_below: write the labels below the ends of the curves, for curves that
        rise.
    """
    box = _AxisRanges(right=x_max, low=y_ticks[0], high=y_ticks[-1])
    lines = [_path(curve, box) for curve in curves]
    inner = tag(
        "svg",
        *lines,
        width="100%",
        height=PLOT_HEIGHT,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        overflow="visible",
    )
    dots = [_dots(curve, box) for curve in curves]
    parts = [
        *_frame(box, x_ticks, y_ticks),
        *_resume_lines(box, resume_steps),
        inner,
        *dots,
    ]
    parts += _labels(curves, box, below=labels_below)
    return labelled_svg(title, *parts, height=PLOT_HEIGHT)


@dataclass(frozen=True, kw_only=True)
class _AxisRanges:
    """The ranges of a plot, which place a point as shares of its width and height."""

    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return value / self.right

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return 1 - min(1.0, max(0.0, share))


def _frame(
    box: _AxisRanges, across: Sequence[float], up: Sequence[float]
) -> list[Markup]:
    parts = []
    for tick in up:
        y = percent_length(box.y(tick))
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        text = format_tick(tick)
        at = {"x": -8, "y": y, "dy": 4, "text_anchor": "end"}
        parts.append(tag("text", text, class_="tick", **at))
    for tick in across:
        at = {
            "x": percent_length(box.x(tick)),
            "y": PLOT_HEIGHT + 17,
            "text_anchor": "middle",
        }
        parts.append(tag("text", format_tick(tick), class_="tick", **at))
    base = {"x1": 0, "x2": "100%", "y1": PLOT_HEIGHT, "y2": PLOT_HEIGHT}
    return [*parts, tag("line", class_="ax", **base)]


def _path(curve: Curve, box: _AxisRanges) -> Markup:
    steps = " ".join(
        f"{100 * box.x(x):.2f},{100 * box.y(y):.2f}" for x, y in curve.points
    )
    return tag("polyline", class_=f"ln s-{curve.stroke}", points=steps)


def _dots(curve: Curve, box: _AxisRanges) -> Markup:
    """Mark the points of a curve that has few; a single point has no line at all."""
    if len(curve.points) > _MAX_DOTS:
        return Markup("")
    places = [
        (percent_length(box.x(x)), percent_length(box.y(y))) for x, y in curve.points
    ]
    return join(
        [
            tag("circle", class_=f"t-{curve.stroke}", cx=x, cy=y, r=2.5)
            for x, y in places
        ]
    )


def _resume_lines(box: _AxisRanges, marks: Sequence[float]) -> list[Markup]:
    parts = []
    for number, mark in enumerate(marks, start=1):
        x = percent_length(box.x(mark))
        parts.append(tag("line", class_="rst", x1=x, x2=x, y1=0, y2="100%"))
        if len(marks) <= 3:
            text = f"resume {number}"
            at = {"x": x, "y": -5, "text_anchor": "middle"}
            parts.append(tag("text", text, class_="tick", **at))
    return parts


def _labels(curves: Sequence[Curve], box: _AxisRanges, *, below: bool) -> list[Markup]:
    """Write the names at the ends, the higher curve's above the lower one's."""
    ends = [curve for curve in curves if curve.peak is None]
    ends.sort(key=lambda curve: box.y(curve.points[-1][1]))
    right = max((box.x(curve.points[-1][0]) for curve in ends), default=1.0)
    near = [box.y(y) for c in ends for x, y in c.points if box.x(x) >= 0.6 * right]
    below = below and max(near) < 0.75  # there is room down to the axis
    offsets = [24 + 16 * n if below else -10 - 16 * n for n in range(len(ends))]
    labels = [
        _label(curve, right, max(near) if below else min(near), dy)
        for curve, dy in zip(ends if below else reversed(ends), offsets)
    ]
    return labels + [
        _label(curve, box.x(curve.peak[0]), box.y(curve.peak[1]), -10)
        for curve in curves
        if curve.peak is not None
    ]


def _label(curve: Curve, x: float, y: float, dy: int) -> Markup:
    """Write a name at a point, towards the side that has more room."""
    sample = tag("tspan", "\u2501 ", class_=f"t-{curve.stroke}")
    anchor = "start" if x < 0.5 else "end"
    at = {
        "x": percent_length(x),
        "y": percent_length(y),
        "dy": dy,
        "text_anchor": anchor,
    }
    return tag("text", sample, curve.label, class_="dl", **at)
