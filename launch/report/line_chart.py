"""Curves over one axis: the lines are stretched to the width, their labels are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from jaxdist.launch.report.svg import format_tick, labelled_svg, percent_length, tag

PLOT_HEIGHT: Final = 200
"""Height of a plot, pixels."""
_MAX_DOTS: Final = 40
"""Points of a curve up to which each is marked."""


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


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its caption and the titles of its axes."""

    name: str
    """What is shown."""
    unit: str
    """Quantity and unit of the vertical axis."""
    svg: Markup
    """The drawing."""
    below: str
    """Title of the horizontal axis."""


def draw_line_chart(
    name: str,
    y_title: str,
    curves: Sequence[Curve],
    *,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_title: str,
    x_max: float | None = None,
    resume_steps: Sequence[float] = (),
    labels_below: bool = False,
) -> Figure:
    """Draw curves over one axis; screen readers hear the name and the curves' labels.

    Args:
        name: what is shown.
        y_title: quantity and unit of the vertical axis.
        curves: at least one, each with at least one point.
        x_ticks: ticks of the horizontal axis, which begins at zero.
        y_ticks: ticks of the vertical axis; first and last are its ends.
        x_title: title of the horizontal axis.
        x_max: end of the horizontal axis; None: its last tick.
        resume_steps: where to draw a dotted line: the run was resumed.
        labels_below: write the labels below the ends of the curves, for curves that
            rise.
    """
    # The last step is rarely a round number: the axis may go on behind its last tick.
    right = x_ticks[-1] if x_max is None else x_max
    placed = [_shares(curve.points, right, y_ticks) for curve in curves]

    parts = []
    heights = _shares([(0.0, tick) for tick in y_ticks], right, y_ticks)
    for tick, (_, share) in zip(y_ticks, heights):
        y = percent_length(share)
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        at = {"x": -8, "y": y, "dy": 4, "text_anchor": "end"}
        parts.append(tag("text", format_tick(tick), class_="tick", **at))
    for tick in x_ticks:
        at = {"x": percent_length(tick / right), "y": PLOT_HEIGHT + 17}
        middle = {"class_": "tick", **at, "text_anchor": "middle"}
        parts.append(tag("text", format_tick(tick), **middle))
    base = {"x1": 0, "x2": "100%", "y1": PLOT_HEIGHT, "y2": PLOT_HEIGHT}
    parts.append(tag("line", class_="ax", **base))

    for number, step in enumerate(resume_steps, start=1):
        x = percent_length(step / right)
        parts.append(tag("line", class_="rst", x1=x, x2=x, y1=0, y2="100%"))
        if len(resume_steps) <= 3:  # the texts of more would overlap
            at = {"x": x, "y": -5, "text_anchor": "middle"}
            parts.append(tag("text", f"resume {number}", class_="tick", **at))

    # A polyline takes no per cent. It lies in an inner drawing of 100 by 100 units that
    # is stretched to the plot; texts and dots stay outside it and keep their shape.
    lines = []
    for curve, places in zip(curves, placed):
        points = " ".join(f"{100 * x:.2f},{100 * y:.2f}" for x, y in places)
        lines.append(tag("polyline", class_=f"ln s-{curve.stroke}", points=points))
    inner = {"width": "100%", "height": PLOT_HEIGHT, "viewBox": "0 0 100 100"}
    stretch = {"preserveAspectRatio": "none", "overflow": "visible"}
    parts.append(tag("svg", *lines, **inner, **stretch))
    # A curve of one point has no line at all: without a dot it would not be seen.
    parts += [
        tag("circle", class_=f"t-{curve.stroke}", cx=x, cy=y, r=2.5)
        for curve, places in zip(curves, placed)
        if len(places) <= _MAX_DOTS
        for x, y in ((percent_length(x), percent_length(y)) for x, y in places)
    ]
    parts += _labels(curves, right, y_ticks, below=labels_below)

    title = f"{name}: {'; '.join(curve.label for curve in curves)}"
    drawn = labelled_svg(title, *parts, height=PLOT_HEIGHT)
    return Figure(name=name, unit=y_title, svg=drawn, below=x_title)


def _shares(
    points: Sequence[tuple[float, float]], right: float, y_ticks: Sequence[float]
) -> list[tuple[float, float]]:
    """Place points as shares of the plot's width and height, from its upper left."""
    low, span = y_ticks[0], y_ticks[-1] - y_ticks[0]
    return [(x / right, 1 - min(1.0, max(0.0, (y - low) / span))) for x, y in points]


def _labels(
    curves: Sequence[Curve], right: float, y_ticks: Sequence[float], *, below: bool
) -> list[Markup]:
    """Write the names at the ends, the higher curve's above the lower one's."""
    ends = [(c, _shares(c.points, right, y_ticks)) for c in curves if c.peak is None]
    ends.sort(key=lambda end: end[1][-1][1])
    last = max((places[-1][0] for _, places in ends), default=1.0)
    # Labels are written towards the left: they stand clear of every curve there.
    near = [y for _, places in ends for x, y in places if x >= 0.6 * last]
    below = below and max(near) < 0.75  # there is room down to the axis
    offsets = [24 + 16 * n if below else -10 - 16 * n for n in range(len(ends))]
    places = [
        (curve, last, max(near) if below else min(near), dy)
        for (curve, _), dy in zip(ends if below else reversed(ends), offsets)
    ]
    for curve in curves:
        if curve.peak is not None:
            ((x, y),) = _shares([curve.peak], right, y_ticks)
            places.append((curve, x, y, -10))

    labels = []
    for curve, x, y, dy in places:
        sample = tag("tspan", "\u2501 ", class_=f"t-{curve.stroke}")
        at = {"x": percent_length(x), "y": percent_length(y), "dy": dy}
        # Text runs towards the side that has more room.
        look = {"class_": "dl", **at, "text_anchor": "start" if x < 0.5 else "end"}
        labels.append(tag("text", sample, curve.label, **look))
    return labels
