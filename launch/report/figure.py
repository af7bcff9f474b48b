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
    unit: str,
    curves: Sequence[Curve],
    *,
    across: Sequence[float],
    up: Sequence[float],
    below: str,
    right: float | None = None,
    marks: Sequence[float] = (),
    rises: bool = False,
) -> Figure:
    """Draw curves; who cannot see them hears the caption and their labels.

    Args:
        name: what is shown.
        unit: quantity and unit of the vertical axis.
        curves: at least one, each with at least one point.
        across: ticks of the horizontal axis.
        up: ticks of the vertical axis; first and last are its ends.
        below: title of the horizontal axis.
        right: end of the horizontal axis; None: its last tick.
        marks: as of `draw_line_chart`.
        rises: write the labels below the ends of the curves.
    """
    drawn = draw_line_chart(
        f"{name}: {'; '.join(curve.label for curve in curves)}",
        curves,
        right=across[-1] if right is None else right,
        across=across,
        up=up,
        marks=marks,
        below=rises,
    )
    return Figure(name=name, unit=unit, svg=drawn, below=below)
