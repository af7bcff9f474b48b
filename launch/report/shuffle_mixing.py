"""Mixing: how well the samples of a run were mixed, forecast and measured by epoch."""

from dataclasses import dataclass

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_percent
from jaxdist.launch.report.figure import Figure, make_figure
from jaxdist.launch.report.line_chart import Curve
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import ticks
from jaxdist.launch.run_folder.jsonl import JsonRow


@dataclass(frozen=True, kw_only=True)
class MixingSection:
    """What the section shows of a run that exchanged a part of its samples."""

    figures: list[Figure]
    how: str


def mixing_caption(record: RunData) -> Markup:
    """Say what was exchanged and what it came to, or that all were drawn from all."""
    found = record.mixed
    if found is None:
        text = (
            "Each epoch is drawn from all samples; <code>jaxdist data quality {}"
            "</code> says what exchanging a part would come to."
        )
        return Markup(text).format(record.run.experiment)
    last = found["measured"][-1]
    text = (
        "A partition exchanged {} of its {} samples an epoch: <b>{}</b> were in their "
        "first one in epoch {}, {} forecast."
    )
    told = Markup(text).format(
        format_count(found["exchanged"]),
        format_count(found["slots"]),
        format_percent(last["home"]),
        format_count(last["epoch"] + 1),
        format_percent(last["home_forecast"]),
    )
    return told + _class_distance_text(record)


def _class_distance_text(record: RunData) -> Markup:
    found = record.mixed or {}
    first, last = found["measured"][0], found["measured"][-1]
    if last["distance"] is None:
        return Markup(" Samples have no label each: no distance between classes.")
    text = " Classes of a partition were {:.3f} from those of all, {:.3f} at first; "
    text += "chance leaves {:.3f}."
    return Markup(text).format(last["distance"], first["distance"], found["floor"])


def mixing_section(record: RunData) -> MixingSection | None:
    """Return the curves of a run that exchanged samples; None of any other."""
    found = record.mixed
    if found is None or len(found["measured"]) < 2:
        return None
    drawn = [
        _forecast_figure(found, "home", "Samples at home", "share of samples, %", 100.0)
    ]
    if found["measured"][-1]["distance"] is not None:
        unit = "distance of a partition's classes, 0 is best"
        drawn.append(_forecast_figure(found, "distance", "Class distance", unit, 1.0))
    how = (
        "Both follow from the order of the samples alone, which is a function of the "
        f"seed; {format_count(found['partitions'])} partitions. Distance: half the "
        "sum of "
        "differences between the parts of each class in a partition and overall, the "
        "mean over partitions."
    )
    return MixingSection(figures=drawn, how=how)


def _forecast_figure(
    found: JsonRow, key: str, name: str, unit: str, scale: float
) -> Figure:
    rows = found["measured"]
    said, seen = (
        [(float(row["epoch"]), scale * row[k]) for row in rows]
        for k in (f"{key}_forecast", key)
    )
    digits = 1 if scale > 1 else 3
    curves = [
        Curve(stroke="forward", points=said, label="forecast"),
        Curve(
            stroke="backward",
            points=seen,
            label=f"measured, {seen[-1][1]:.{digits}f} in the last epoch",
        ),
    ]
    right = float(rows[-1]["epoch"])
    across = [tick for tick in ticks(0.0, right) if tick <= right and tick % 1 == 0]
    up = ticks(0.0, max(y for _, y in (*said, *seen)))
    below = "epochs before"
    return make_figure(
        name, unit, curves, x_max=right, x_ticks=across, y_ticks=up, x_title=below
    )
