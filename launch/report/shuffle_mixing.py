"""Mixing: how well the samples of a run were mixed, forecast and measured by epoch."""

from dataclasses import dataclass

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_percent
from jaxdist.launch.report.charts import Curve, Figure, draw_line_chart, ticks
from jaxdist.launch.report.run_record import RunData


@dataclass(frozen=True, kw_only=True)
class MixingSection:
    """What the section shows of a run that exchanged a part of its samples."""

    figures: list[Figure]
    how: str


def mixing_caption(record: RunData) -> Markup:
    """Say what was exchanged and how mixed it left the samples."""
    found = record.mixed
    if found is None:
        text = (
            "Each epoch is drawn from all samples; <code>jaxdist data quality {}"
            "</code> forecasts what exchanging only a part would do."
        )
        return Markup(text).format(record.run.experiment)
    # The first row is of the epoch before any exchange, the last of the mixed samples.
    first, last = found["measured"][0], found["measured"][-1]
    text = (
        "A partition exchanged {} of its {} samples an epoch: in epoch {}, <b>{}</b> "
        "were still where they began, {} by forecast."
    )
    told = Markup(text).format(
        format_count(found["exchanged"]),
        format_count(found["slots"]),
        format_count(last["epoch"] + 1),
        format_percent(last["home"]),
        format_percent(last["home_forecast"]),
    )
    if last["distance"] is None:
        text = " Samples have no single label: there is no distance between classes."
        return told + Markup(text)
    text = (
        " The classes of a partition ended {:.3f} from those of all samples, {:.3f} at "
        "first; chance alone leaves {:.3f}."
    )
    return told + Markup(text).format(
        last["distance"], first["distance"], found["floor"]
    )


def mixing_section(record: RunData) -> MixingSection | None:
    """Return the curves of a run that exchanged samples; None of any other."""
    found = record.mixed
    if found is None or len(found["measured"]) < 2:
        return None
    rows, figures = found["measured"], []
    last = float(rows[-1]["epoch"])
    # Samples move between epochs alone, so ticks are whole epochs.
    across = [tick for tick in ticks(0.0, last) if tick <= last and tick % 1 == 0]
    # Samples of several labels, as texts are, have no class to be distributed.
    kinds = [("home", "Samples at home", "share of samples, %", 100.0, 1)]
    if rows[-1]["distance"] is not None:
        unit = "distance of a partition's classes, 0 is best"
        kinds.append(("distance", "Class distance", unit, 1.0, 3))
    for key, name, unit, scale, digits in kinds:
        forecast, measured = (
            [(float(row["epoch"]), scale * row[column]) for row in rows]
            for column in (f"{key}_forecast", key)
        )
        label = f"measured, {measured[-1][1]:.{digits}f} in the last epoch"
        drawn = draw_line_chart(
            name,
            unit,
            [
                Curve(stroke="forward", points=forecast, label="forecast"),
                Curve(stroke="backward", points=measured, label=label),
            ],
            x_max=last,
            x_ticks=across,
            y_ticks=ticks(0.0, max(y for _, y in (*forecast, *measured))),
            x_title="epochs before",
        )
        figures.append(drawn)
    how = (
        "Both follow from the order of the samples alone, which is a function of the "
        f"seed; {format_count(found['partitions'])} partitions. Distance: half the sum "
        "of differences between the parts of each class in a partition and overall, "
        "the mean over partitions."
    )
    return MixingSection(figures=figures, how=how)
