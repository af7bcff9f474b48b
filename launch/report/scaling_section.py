"""Scaling: what more processes bring, from the newest study of the same experiment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.text.formatting import format_percent, format_size
from jaxdist.launch.report.figure import Figure, make_figure
from jaxdist.launch.report.line_chart import Curve
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import ticks
from jaxdist.launch.terminal.run_header import pluralize

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
    share = best["efficiency"]
    text = "{} {} <b>{:,.0f} samples/s</b> with batch {:,}"
    told = Markup(text).format(
        pluralize(best["processes"], "process"),
        "makes" if best["processes"] == 1 else "make",
        best["samples_per_s"],
        best["batch"],
    )
    if share is not None:
        told += Markup(", <b>{}</b> efficient").format(format_percent(share))
    return told + Markup("; {} scaling on {}.").format(
        study["scaling"], study["place"]["name"]
    )


def scaling_section(record: RunData) -> ScalingSection | None:
    """Return the curves and the table of a study; None where there is none."""
    study = record.study
    if study is None or not study["runs"]:
        return None
    lines = _runs_by_algorithm(study, record.value("data.batch"))
    drawn = [
        one for one in (_throughput_figure(lines), _efficiency_figure(lines)) if one
    ]
    return ScalingSection(
        figures=drawn,
        lines=[_scaling_row(one) for one in study["runs"]],
        fits=[text for fit in study["fits"] if (text := _fit_text(fit))],
        how=_method_note(study),
    )


def _runs_by_algorithm(
    study: Mapping[str, Any], batch: object
) -> dict[str, list[ScalingRunRow]]:
    """Return the runs of one batch by way to sum, by their number of processes."""
    weak = study["scaling"] == "weak"
    asked = {one["batch"] // (one["processes"] if weak else 1) for one in study["runs"]}
    chosen = batch if isinstance(batch, int) and batch in asked else max(asked)
    source = "real" if any(one["input"] == "real" for one in study["runs"]) else ""
    runs = [
        one
        for one in study["runs"]
        if one["batch"] == chosen * (one["processes"] if weak else 1)
        and one["input"].startswith(source)
    ]
    alone = [one for one in runs if one["processes"] == 1]
    ways = dict.fromkeys(one["reduce"] for one in runs if one["processes"] > 1)
    found = {
        way: [*alone, *(o for o in runs if o["reduce"] == way and o["processes"] > 1)]
        for way in ways
    }
    return {
        way: sorted(line, key=lambda one: one["processes"])
        for way, line in found.items()
        if len(line) > 1
    }


def _throughput_figure(lines: Mapping[str, Sequence[ScalingRunRow]]) -> Figure | None:
    if not lines:
        return None
    base = next(iter(lines.values()))[0]
    each = base["samples_per_s"] / base["processes"]
    linear = [(float(p), each * p) for p in _process_counts(lines.values())]
    curves = [Curve(stroke="forward", points=linear, label="linear")]
    curves += [
        Curve(
            stroke="backward",
            points=[(float(o["processes"]), o["samples_per_s"]) for o in line],
            label=f"{way}, {line[-1]['samples_per_s']:,.0f} at {line[-1]['processes']}",
        )
        for way, line in lines.items()
    ]
    return _process_figure("Throughput", "samples/s", curves, lines.values())


def _efficiency_figure(lines: Mapping[str, Sequence[ScalingRunRow]]) -> Figure | None:
    """Draw it, but for a study whose run on the fewest processes is lost."""
    known = {w: line for w, line in lines.items() if line[-1]["efficiency"] is not None}
    if not known:
        return None
    curves = [
        Curve(
            stroke="backward",
            points=[(float(o["processes"]), 100 * o["efficiency"]) for o in line],
            label=f"{way}, {format_percent(line[-1]['efficiency'], 0)}",
        )
        for way, line in known.items()
    ]
    unit = "samples/s a process, % of the fewest"
    return _process_figure("Efficiency", unit, curves, known.values())


def _process_figure(
    name: str,
    unit: str,
    curves: Sequence[Curve],
    lines: Iterable[Sequence[ScalingRunRow]],
) -> Figure:
    counts = [float(count) for count in _process_counts(lines)]
    up = ticks(0.0, 1.25 * max(y for curve in curves for _, y in curve.points))
    return make_figure(
        name, unit, curves, x_ticks=counts, y_ticks=up, x_title="processes"
    )


def _process_counts(lines: Iterable[Sequence[ScalingRunRow]]) -> list[int]:
    return sorted({one["processes"] for line in lines for one in line})


def _scaling_row(one: ScalingRunRow) -> ScalingRow:
    low, high = one["samples_per_s_p5"], one["samples_per_s_p95"]
    share = one["efficiency"]
    return ScalingRow(
        processes=f"{one['processes']:,}",
        batch=f"{one['batch']:,}",
        way=f"{one['reduce']}, {one['input']} input",
        rate=f"{one['samples_per_s']:,.0f}",
        spread=f"{min(low, high):,.0f} to {max(low, high):,.0f}",
        efficiency="" if share is None else format_percent(share),
        sent=format_size(one["bytes_sent"]),
    )


def _fit_text(fit: Mapping[str, Any]) -> str:
    """Say how a step of the most processes is made up, as the study fitted it."""
    if not fit["fitted"]:
        return ""
    last = max(fit["shares"], key=lambda one: one["processes"])
    parts = ("serial", "parallel", "communication")
    told = ", ".join(
        f"{part} {format_percent(last[part])}" for part in parts if part in last
    )
    furthest = format_percent(fit["furthest"], 0)
    return (
        f"Fitted with {fit['reduce']}, {fit['input']} input: a step of "
        f"{pluralize(last['processes'], 'process')} is {told}; the furthest of "
        f"{fit['points']} points is {furthest} off."
    )


def _method_note(study: Mapping[str, Any]) -> str:
    cores = pluralize(study["place"]["cores"], "core")
    return (
        f"From the study in {study['folder']}, newest of this experiment, on {cores}: "
        "samples/s at the median of steady steps, with its slow and fast steps. "
        "Efficiency: samples/s a process over that of the fewest processes. Sent: "
        "bytes of a device in a step."
    )
