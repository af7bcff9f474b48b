"""A figure: a plot with its caption and the titles of its axes."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from jaxdist.launch.report.line_chart import Curve, draw_line_chart


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


def make_figure(
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
    """Draw curves; who cannot see them hears the caption and their labels.

    Args:
        name: what is shown.
        y_title: quantity and unit of the vertical axis.
        curves: at least one, each with at least one point.
        x_ticks: ticks of the horizontal axis.
        y_ticks: ticks of the vertical axis; first and last are its ends.
        x_title: title of the horizontal axis.
        x_max: end of the horizontal axis; None: its last tick.
        resume_steps: as of `draw_line_chart`.
        labels_below: write the labels below the ends of the curves.
    """
    drawn = draw_line_chart(
        f"{name}: {'; '.join(curve.label for curve in curves)}",
        curves,
        x_max=x_ticks[-1] if x_max is None else x_max,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        resume_steps=resume_steps,
        labels_below=labels_below,
    )
    return Figure(name=name, unit=y_title, svg=drawn, below=x_title)
