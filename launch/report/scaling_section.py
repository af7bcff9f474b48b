"""Scaling: what more processes bring, from the newest study of the same experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from markupsafe import Markup

from jaxdist.core.text.formatting import format_percent, format_size
from jaxdist.launch.report.charts import (
    SERIES_STROKES,
    Curve,
    Figure,
    XAxis,
    YAxis,
    draw_line_chart,
    ticks,
)
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_summary import pluralize

ScalingRunRow = Mapping[str, Any]
"""A run of a study, as `scale.json` has it."""


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """A run of the study, as a row of the table."""

    processes: str
    batch: str
    way: str
    rate: str
    spread: str
    efficiency: str
    sent: str


@dataclass(frozen=True, kw_only=True)
class ScalingSection:
    """What the section shows."""

    figures: Sequence[Figure]
    lines: Sequence[ScalingRow]
    fits: Sequence[str]
    how: str


def scaling_caption(record: RunData) -> Markup:
    """Say what the most processes bring, or which command measures it."""
    study = record.study
    if study is None or not study["runs"]:
        text = "Not measured: <code>jaxdist scale {} --processes 1,2</code>."
        return Markup(text).format(record.run.experiment or "EXPERIMENT")
    best = max(study["runs"], key=lambda one: (one["processes"], one["samples_per_s"]))
    text = "{} {} <b>{:,.0f} samples/s</b> with batch {:,}"
    told = Markup(text).format(
        pluralize(best["processes"], "process"),
        "makes" if best["processes"] == 1 else "make",
        best["samples_per_s"],
        best["batch"],
    )
    # Without the run on the fewest processes there is nothing to compare with.
    if best["efficiency"] is not None:
        share = format_percent(best["efficiency"])
        told += Markup(", <b>{}</b> efficient").format(share)
    place = study["place"]["name"]
    return told + Markup("; {} scaling on {}.").format(study["scaling"], place)


def scaling_section(record: RunData) -> ScalingSection | None:
    """Return the curves and the table of a study; None where there is none."""
    study = record.study
    if study is None or not study["runs"]:
        return None
    rows = []
    for one in study["runs"]:
        ends = sorted((one["samples_per_s_p5"], one["samples_per_s_p95"]))
        share = one["efficiency"]
        row = ScalingRow(
            processes=f"{one['processes']:,}",
            batch=f"{one['batch']:,}",
            way=f"{one['reduce']}, {one['input']} input",
            rate=f"{one['samples_per_s']:,.0f}",
            spread=f"{ends[0]:,.0f} to {ends[1]:,.0f}",
            efficiency="" if share is None else format_percent(share),
            sent=format_size(one["bytes_sent"]),
        )
        rows.append(row)

    fits = []
    for fit in study["fits"]:
        if not fit["fitted"]:
            continue
        # Of all points the one with most processes: communication counts most there.
        last = max(fit["shares"], key=lambda one: one["processes"])
        parts = [p for p in ("serial", "parallel", "communication") if p in last]
        told = ", ".join(f"{part} {format_percent(last[part])}" for part in parts)
        text = (
            f"Fitted with {fit['reduce']}, {fit['input']} input: a step of "
            f"{pluralize(last['processes'], 'process')} is {told}; the furthest of "
            f"{fit['points']} points is {format_percent(fit['furthest'], 0)} off."
        )
        fits.append(text)

    how = (
        f"From the study in {study['folder']}, newest of this experiment, on "
        f"{pluralize(study['place']['cores'], 'core')}: samples/s at the median of "
        "steady steps, with its slow and fast steps. Efficiency: samples/s a process "
        "over that of the fewest processes. Sent: bytes of a device in a step."
    )
    figures = _scaling_figures(study, record.value("data.batch"))
    return ScalingSection(figures=figures, lines=rows, fits=fits, how=how)


def _scaling_figures(study: Mapping[str, Any], run_batch: object) -> list[Figure]:
    """Draw throughput and efficiency over processes, a curve an all-reduce algorithm.

    Args:
        study: as `scale.json` has it.
        run_batch: global batch of the run; its curves are drawn where the study has
            them, else those of the largest batch.
    """
    # In weak scaling a batch is that of one process.
    weak = study["scaling"] == "weak"
    batch_of = [
        (one, one["batch"] // (one["processes"] if weak else 1))
        for one in study["runs"]
    ]
    asked = {batch for _, batch in batch_of}
    known = isinstance(run_batch, int) and run_batch in asked
    chosen = run_batch if known else max(asked)
    # A study may have both inputs: what real samples reach is what a training would.
    source = "real" if any(one["input"] == "real" for one in study["runs"]) else ""
    runs = [o for o, b in batch_of if b == chosen and o["input"].startswith(source)]

    # One process has nothing to sum: its run begins the line of every algorithm.
    names = dict.fromkeys(one["reduce"] for one in runs if one["processes"] > 1)
    runs.sort(key=lambda one: one["processes"])
    lines = {
        n: [o for o in runs if o["processes"] == 1 or o["reduce"] == n] for n in names
    }
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    if not lines:
        return []

    base = next(iter(lines.values()))[0]
    each = base["samples_per_s"] / base["processes"]
    counts = sorted(
        {float(one["processes"]) for line in lines.values() for one in line}
    )
    linear = [(count, each * count) for count in counts]
    rates = [Curve(stroke="forward", points=linear, label="linear", name="linear")]
    shares = []
    for (name, line), stroke in zip(lines.items(), cycle(SERIES_STROKES)):
        last, at = line[-1], [float(one["processes"]) for one in line]
        label = f"{name}, {last['samples_per_s']:,.0f} at {last['processes']}"
        points = list(zip(at, [one["samples_per_s"] for one in line]))
        rates.append(Curve(stroke=stroke, points=points, label=label, name=name))
        # Where the run on the fewest processes failed nothing is an efficiency.
        if last["efficiency"] is not None:
            label = f"{name}, {format_percent(last['efficiency'], 0)}"
            points = list(zip(at, [100 * one["efficiency"] for one in line]))
            shares.append(Curve(stroke=stroke, points=points, label=label, name=name))
    charts = [("Throughput", "samples/s", rates)]
    if shares:
        unit = "samples/s a process, % of the fewest"
        charts.append(("Efficiency", unit, shares))
    return [
        draw_line_chart(
            name,
            curves,
            XAxis(title="processes", ticks=counts),
            # Labels stand above the ends of curves that rise to the upper edge.
            YAxis(
                title=unit,
                ticks=ticks(0.0, 1.25 * max(y for c in curves for _, y in c.points)),
            ),
        )
        for name, unit, curves in charts
    ]
