"""The page of a study: one offline HTML file, in the look of a run's report."""

from pathlib import Path
from statistics import fmean
from typing import Final

from markupsafe import Markup

from jaxdist.core.files import write_atomic
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.core.validation import json_text
from jaxdist.launch.report.charts import (
    BarSegment,
    Curve,
    Figure,
    XAxis,
    YAxis,
    draw_line_chart,
    stacked_bar,
    ticks,
)
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.report.learning_curves import downsample
from jaxdist.launch.scaling import findings
from jaxdist.launch.scaling.fit import FIT_EQUATION, ScalingFit
from jaxdist.launch.scaling.json_view import scaling_tree
from jaxdist.launch.scaling.results import ScalingResult, SeriesFit
from jaxdist.launch.scaling.table import (
    COLUMNS,
    batch_measurements,
    batch_scope,
    table_row,
)
from jaxdist.launch.terminal.run_summary import pluralize

_FILLS: Final = {
    "serial": "forward",
    "parallel": "backward",
    "communication": "data",
}
"""How the parts of a step are drawn: computing is cool, what travels warm."""


def write_page(result: ScalingResult, folder: Path) -> Path:
    """Write `scale.html` and `scale.json` into a study's folder; return the page."""
    page, tree = folder / "scale.html", json_text(scaling_tree(result), indent=2)
    # A study that is resumed writes both again, while a browser may have the page open.
    write_atomic(page, render_page(result))
    write_atomic(folder / "scale.json", tree + "\n")
    return page


def render_page(result: ScalingResult) -> str:
    """Write the page of a study as one HTML document that loads nothing else."""
    shared = findings.shared_cores_sentence(result)
    place = result.place.title
    facts = {
        "Place": f"{place}; {shared}" if shared else place,
        "Runs": f"{len(result.readings)} measured, {len(result.lost)} failed",
    }
    # All runs train the same network on the same data: the first one tells both.
    for one in result.readings[:1]:
        facts["Network"] = f"{one.parameters:,} parameters"
        facts["Data"] = f"{one.samples:,} training samples"
    rows = [
        (
            one.run.input,
            str(one.run.batch),
            *table_row(result, one),
            format_size(one.sent_bytes),
        )
        for one in result.readings
    ]
    blocks = [
        (f"Batch {asked} {batch_scope(result)}", _batch_figures(result, asked))
        for asked in result.grid.batches
        if batch_measurements(result, asked)
    ]
    fits = [
        (
            f"{one.reduce}, {one.source} input",
            findings.fit_sentence(one),
            _fit_bars(one),
        )
        for one in result.fits
    ]
    context = {
        "result": result,
        "headline": findings.headline(result),
        "facts": facts,
        "heads": ("input", "batch", *COLUMNS, "sent"),
        "rows": rows,
        "words": ("reduce", "input"),
        "measured": findings.measurement_sentence(result) if result.readings else "",
        "busy": findings.other_work_sentences(result),
        "blocks": blocks,
        "equation": FIT_EQUATION,
        "fits": fits,
        "drifts": [findings.divergence_sentence(one) for one in result.drifts],
        "costs": findings.input_cost_sentences(result),
    }
    return render_template(read_resource("scale.html.j2", __package__), context)


def _batch_figures(result: ScalingResult, grid_batch: int) -> list[Figure]:
    """Draw all lines of one batch of the grid: rates, then epochs, then losses.

    Figures of a kind share one vertical axis, so that lines compare by eye.
    """
    among = batch_measurements(result, grid_batch)
    fastest = max(one.samples_per_s for one in among)
    longest = max(one.epoch_s for one in among)
    highest = max(loss for one in among for loss in one.losses)
    counts = [float(count) for count in result.grid.processes]
    across = XAxis(title="processes", ticks=counts)
    lines = [
        (f"{reduce}, {source} input", runs)
        for source in result.grid.inputs
        for reduce in result.grid.reductions
        if (runs := result.series(reduce, source, grid_batch))
    ]
    rates, epochs, losses = [], [], []
    for name, runs in lines:
        base, last = runs[0], runs[-1]
        each = base.samples_per_s / base.run.processes
        # What all processes would reach if each were as fast as on the fewest.
        linear = [(count, each * count) for count in counts]
        share = last.samples_per_s / last.run.processes / each
        label = f"measured, {format_percent(share, 0)} efficient"
        points = [(float(one.run.processes), one.samples_per_s) for one in runs]
        drawn = draw_line_chart(
            f"Samples/s, {name}",
            [
                Curve(stroke="forward", points=linear, label="linear", name="linear"),
                Curve(stroke="backward", points=points, label=label, name="measured"),
            ],
            across,
            YAxis(title="samples/s", ticks=ticks(0.0, max(fastest, linear[-1][1]))),
        )
        rates.append(drawn)

        points = [(float(one.run.processes), one.epoch_s) for one in runs]
        label = f"{points[-1][1]:,.1f} at the end"
        drawn = draw_line_chart(
            f"Epoch, {name}",
            [Curve(stroke="backward", points=points, label=label)],
            across,
            YAxis(title="seconds", ticks=ticks(0.0, longest)),
        )
        epochs.append(drawn)

        # Random samples have nothing to learn: their losses are not drawn.
        if base.run.input != "real":
            continue
        # The fewest and the most processes tell whether losses part; more curves would
        # only hide each other.
        ends = [base] if len(runs) == 1 else [base, last]
        curves = []
        for stroke, one in zip(("forward", "backward"), ends):
            points = downsample(one.loss_curve, fmean)
            named = pluralize(one.run.processes, "process")
            label = f"{named}, {one.losses[-1]:.3f}"
            curve = Curve(stroke=stroke, points=points, label=label, name=named)
            curves.append(curve)
        right = max(point[0] for curve in curves for point in curve.points)
        drawn = draw_line_chart(
            f"Loss, {name}",
            curves,
            XAxis(
                title="epochs",
                ticks=[tick for tick in ticks(0.0, right) if tick <= right],
                end=right,
            ),
            YAxis(title="loss, nats", ticks=ticks(0.0, highest)),
        )
        losses.append(drawn)
    return [*rates, *epochs, *losses]


def _fit_bars(series: SeriesFit) -> list[tuple[str, Markup]]:
    """Draw the parts of each fitted step, with its name; nothing without a fit."""
    if not isinstance(series.found, ScalingFit):
        return []
    drawn = []
    for point in series.points:
        segments = [
            BarSegment(
                fill=_FILLS[name],
                size=seconds,
                title=f"{name} {format_duration(seconds)}",
                label=name,
                half=True,
            )
            for name, seconds in series.found.component_seconds(point).items()
            if seconds
        ]
        named = f"{pluralize(point.processes, 'process')}, {point.each:g} samples each"
        title = f"{named}: {'; '.join(segment.title for segment in segments)}"
        drawn.append((named, stacked_bar(title, segments)))
    return drawn
