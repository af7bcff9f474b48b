"""Drawings of a study: curves over processes and epochs, and the parts of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_duration, format_percent
from jaxdist.launch.report.bar_chart import BarSegment, stacked_bar
from jaxdist.launch.report.figure import Figure, make_figure
from jaxdist.launch.report.learning_curves import downsample
from jaxdist.launch.report.line_chart import Curve
from jaxdist.launch.report.svg import ticks
from jaxdist.launch.scaling.fit import ScalingFit
from jaxdist.launch.scaling.results import ScalingResult, SeriesFit
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement
from jaxdist.launch.scaling.table import batch_measurements
from jaxdist.launch.terminal.run_header import pluralize

_FILLS: Final = {
    "serial": "forward",
    "parallel": "backward",
    "communication": "data",
}
"""How the parts of a step are drawn: computing is cool, what travels warm."""


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """A fitted step, as its parts."""

    name: str
    """Which one."""
    svg: Markup
    """The drawing, of full width."""


def batch_figures(result: ScalingResult, grid_batch: int) -> list[Figure]:
    """Draw all lines of one batch of the grid; each kind on one vertical axis."""
    lines = [
        (f"{reduce}, {source} input", runs)
        for source in result.grid.inputs
        for reduce in result.grid.reductions
        if (runs := result.series(reduce, source, grid_batch))
    ]
    real = [line for line in lines if line[1][0].run.input == "real"]
    kinds = ((_rate_figure, lines), (_epoch_figure, lines), (_loss_figure, real))
    return [
        draw(result, runs, name, grid_batch)
        for draw, among in kinds
        for name, runs in among
    ]


def fit_bars(series: SeriesFit) -> list[StepBar]:
    """Draw the parts of each fitted step; nothing where there is no fit."""
    if not isinstance(series.found, ScalingFit):
        return []
    found, drawn = series.found, []
    for point in series.points:
        parts = found.component_seconds(point)
        named = f"{pluralize(point.processes, 'process')}, {point.each:g} samples each"
        segments = [
            BarSegment(
                fill=_FILLS[name],
                size=seconds,
                title=f"{name} {format_duration(seconds)}",
                label=name,
                half=True,
            )
            for name, seconds in parts.items()
            if seconds
        ]
        title = f"{named}: {'; '.join(segment.title for segment in segments)}"
        drawn.append(StepBar(name=named, svg=stacked_bar(title, segments)))
    return drawn


def _rate_figure(
    result: ScalingResult, runs: Sequence[ScalingMeasurement], name: str, asked: int
) -> Figure:
    base, last = runs[0], runs[-1]
    each = base.samples_per_s / base.run.processes
    linear = [(float(p), each * p) for p in result.grid.processes]
    own = [(float(one.run.processes), one.samples_per_s) for one in runs]
    highest = max(one.samples_per_s for one in batch_measurements(result, asked))
    share = last.samples_per_s / last.run.processes / each
    curves = [
        Curve(stroke="forward", points=linear, label="linear"),
        Curve(
            stroke="backward",
            points=own,
            label=f"measured, {format_percent(share, 0)} efficient",
        ),
    ]
    up = ticks(0.0, max(highest, linear[-1][1]))
    return _process_figure(result, f"Samples/s, {name}", "samples/s", curves, up)


def _epoch_figure(
    result: ScalingResult, runs: Sequence[ScalingMeasurement], name: str, asked: int
) -> Figure:
    points = [(float(one.run.processes), one.epoch_s) for one in runs]
    curve = Curve(
        stroke="backward", points=points, label=f"{points[-1][1]:,.1f} at the end"
    )
    up = ticks(0.0, max(one.epoch_s for one in batch_measurements(result, asked)))
    return _process_figure(result, f"Epoch, {name}", "seconds", [curve], up)


def _process_figure(
    result: ScalingResult,
    name: str,
    unit: str,
    curves: Sequence[Curve],
    up: Sequence[float],
) -> Figure:
    counts = [float(count) for count in result.grid.processes]
    return make_figure(
        name, unit, curves, x_ticks=counts, y_ticks=up, x_title="processes"
    )


def _loss_figure(
    result: ScalingResult, runs: Sequence[ScalingMeasurement], name: str, asked: int
) -> Figure:
    ends = [runs[0]] if len(runs) == 1 else [runs[0], runs[-1]]
    curves = [
        Curve(
            stroke=stroke,
            points=downsample(one.loss_curve, fmean),
            label=f"{pluralize(one.run.processes, 'process')}, {one.losses[-1]:.3f}",
        )
        for stroke, one in zip(("forward", "backward"), ends)
    ]
    right = max(point[0] for curve in curves for point in curve.points)
    highest = max(
        loss for one in batch_measurements(result, asked) for loss in one.losses
    )
    return make_figure(
        f"Loss, {name}",
        "loss, nats",
        curves,
        x_max=right,
        x_ticks=[tick for tick in ticks(0.0, right) if tick <= right],
        y_ticks=ticks(0.0, highest),
        x_title="epochs",
    )
