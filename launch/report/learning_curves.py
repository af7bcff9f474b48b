"""What a run learned: its curves, drawn from the lines of `metrics.jsonl`."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, TypeGuard

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_percent
from jaxdist.launch.report.charts import (
    AxisMark,
    Curve,
    Figure,
    XAxis,
    YAxis,
    draw_line_chart,
    ticks,
)
from jaxdist.launch.report.run_record import RunData, change_texts
from jaxdist.launch.run_folder.folder import JsonRow

Points = list[tuple[float, float]]
"""(step, value), by step."""

_MAX_PERPLEXITY_LOSS: Final = 100.0
"""Loss up to which its exponential is a number to be drawn."""
_MAX_POINTS: Final = 300
"""Points of a curve at most: a page of a million steps is no larger than another."""


_KNOWN_COLUMNS: Final = (
    *("kind", "step", "epoch", "time", "loss", "learning_rate", "step_s"),
    *("gradient_norm", "busiest_expert_share", "dropped_share"),
    *("accuracy", "correct", "answers", "samples", "perplexity"),
    *("host_memory_bytes", "device_memory_bytes"),
)
"""What rows have in each run; further columns are metrics of its own."""


def learning_figures(record: RunData) -> list[Figure]:
    """Draw every curve the run has lines for; a run without steps has none."""
    if not (record.train or record.tests):
        return []
    x = step_axis([record], marks=attempt_marks(record))
    tokens = record.is_language_model
    figures = []

    train, test = training_loss(record), metric_points(record.tests, "loss")
    named = (("forward", "training", train), ("backward", "test", test))
    curves = [
        Curve(
            stroke=stroke,
            points=line,
            label=f"{name}, {line[-1][1]:.3f} at the end",
            name=name,
        )
        for stroke, name, line in named
        if line
    ]
    if curves:
        up = ticks(0.0, max(y for curve in curves for _, y in curve.points))
        # Only of tokens the loss is known: others have an objective of their own.
        title = "cross-entropy, nats a token" if tokens else "mean over the samples"
        y = YAxis(title=title, ticks=up)
        figures.append(draw_line_chart("Loss", curves, x, y, offers_log=True))

    scores = accuracy_points(record)
    if scores:
        label = f"test, {scores[-1][1]:.2f} at the end"
        curves = [Curve(stroke="backward", points=scores, label=label)]
        y = accuracy_axis(scores, record.answer_noun)
        # The one curve that rises.
        drawn = draw_line_chart("Test accuracy", curves, x, y, labels_below=True)
        figures.append(drawn)
    if points := perplexity_points(record):
        figures.append(_draw_column("Test perplexity", "e to the loss", points, x))

    if norms := gradient_norms(record):
        figures.append(_norm_figure(record, norms, x))
    figures += _routing_figures(record, x)
    rates = metric_points(record.train, "learning_rate")
    if rates:
        peak = max(rates, key=lambda point: point[1])
        label = f"peak {peak[1]:.3g} at step {peak[0]:,.0f}"
        # A rate that the step had: a mean over a warm-up or a drop was never used.
        thin = downsample(rates, lambda group: group[-1])
        curves = [Curve(stroke="backward", points=thin, label=label, peak=peak)]
        # Room above the peak for its label.
        y = YAxis(title="learning rate", ticks=ticks(0.0, 1.15 * peak[1]))
        figures.append(draw_line_chart("Learning rate", curves, x, y))

    times = [(s, 1e3 * y) for s, y in metric_points(record.train, "step_s")]
    if times:
        label = f"{record.run.step_s * 1e3:,.1f} median"
        # The median of a group, since one slow step would lift a mean out of sight.
        thin = downsample(times, median)
        unit = "time a step, ms"
        figures.append(_draw_column("Step time", unit, thin, x, label))
    rates, unit = throughput(record)
    if rates:
        label = f"{median(y for _, y in rates):,.0f} median"
        thin = downsample(rates, median)
        figures.append(_draw_column("Throughput", unit, thin, x, label))
    figures += _memory_figures(record, x)

    for rows, where in ((record.train, "training"), (record.tests, "test")):
        for column in sorted({key for row in rows for key in row}):
            points = downsample(metric_points(rows, column), fmean)
            if points and column not in _KNOWN_COLUMNS:
                figures.append(_draw_column(column, where, points, x))
    return figures


def _draw_column(
    name: str, unit: str, points: Points, x: XAxis, label: str = ""
) -> Figure:
    """Draw one column of the metrics, labelled by its last value if by nothing else."""
    values = [y for _, y in points]
    low, high = min(0.0, *values), max(0.0, *values)
    curve = Curve(
        stroke="backward",
        points=points,
        label=label or f"{values[-1]:,.4g} at the end",
    )
    # Labels stand above the end of a curve, which may be its highest value.
    y = YAxis(title=unit, ticks=ticks(low, high + 0.2 * (high - low)))
    return draw_line_chart(name, [curve], x, y, offers_log=True)


def _norm_figure(record: RunData, norms: Points, x: XAxis) -> Figure:
    """Draw the norm of the gradient, and the norm that it was clipped to."""
    label = f"{norms[-1][1]:.3g} at the end"
    curves = [Curve(stroke="backward", points=norms, label=label, name="norm")]
    most = max(y for _, y in norms)
    clip = record.value("optim.clip")
    if is_finite_number(clip) and 0 < clip <= most:
        ends = [(step, float(clip)) for step in (norms[0][0], norms[-1][0])]
        label = f"clipped to {clip:g}"
        curves.append(Curve(stroke="forward", points=ends, label=label, name="clip"))
    y = YAxis(title="norm of the whole gradient", ticks=ticks(0.0, 1.2 * most))
    return draw_line_chart("Gradient norm", curves, x, y, offers_log=True)


def _routing_figures(record: RunData, x: XAxis) -> list[Figure]:
    """Draw what the busiest expert gets, and what finds no slot, in per cent."""
    curves = []
    for stroke, column, name in (
        ("backward", "busiest_expert_share", "busiest expert"),
        ("forward", "dropped_share", "dropped"),
    ):
        points = downsample(metric_points(record.train, column), fmean)
        line = [(step, 100 * y) for step, y in points]
        # Without a capacity nothing can be dropped.
        if any(y for _, y in line):
            label = f"{name}, {line[-1][1]:.1f} at the end"
            curves.append(Curve(stroke=stroke, points=line, label=label, name=name))
    if not curves:
        return []
    most = max(y for curve in curves for _, y in curve.points)
    y = YAxis(title="choices of experts, %", ticks=ticks(0.0, 1.2 * most))
    return [draw_line_chart("Routing", curves, x, y)]


def _memory_figures(record: RunData, x: XAxis) -> list[Figure]:
    """Draw the memory of the first process, and the most of one of its devices."""
    curves = []
    for stroke, name in (("forward", "host"), ("backward", "device")):
        points = metric_points(record.train, f"{name}_memory_bytes")
        if points:
            # The largest of a group: a mean would hide what nearly did not fit.
            held = downsample([(step, y / 1e9) for step, y in points], max)
            label = f"{name}, {held[-1][1]:.3g} at the end"
            curve = Curve(stroke=stroke, points=held, label=label, name=name)
            curves.append(curve)
    if not curves:
        return []
    most = max(y for curve in curves for _, y in curve.points)
    y = YAxis(title="memory, GB", ticks=ticks(0.0, 1.15 * most))
    return [draw_line_chart("Memory", curves, x, y)]


def step_axis(records: Sequence[RunData], marks: Sequence[AxisMark] = ()) -> XAxis:
    """Return an axis over all steps of some runs, with epochs if they have the same."""
    last = max(each.last_step for each in records)
    epochs = {each.epoch_steps for each in records}
    return XAxis(
        title="step",
        ticks=[tick for tick in ticks(0.0, last) if tick <= last and tick % 1 == 0],
        end=last,
        marks=marks,
        epoch=epochs.pop() if len(epochs) == 1 else None,
    )


def accuracy_points(record: RunData) -> Points:
    """Return the accuracy of each evaluation, in per cent."""
    return [(step, 100 * y) for step, y in metric_points(record.tests, "accuracy")]


def perplexity_points(record: RunData) -> Points:
    """Return the perplexity of each evaluation of a language model."""
    # Of documents that share windows it is that of all tokens; the loss is of windows.
    if own := metric_points(record.tests, "perplexity"):
        return own
    losses = metric_points(record.tests, "loss") if record.is_language_model else []
    # A larger loss has an exponential that nobody can read.
    if max((loss for _, loss in losses), default=0.0) >= _MAX_PERPLEXITY_LOSS:
        return []
    return [(step, math.exp(loss)) for step, loss in losses]


def accuracy_axis(scores: Points, answers: str) -> YAxis:
    """Return an axis of accuracies in per cent.

    Networks that are 99 % right would all be a line along the upper edge, so the axis
    begins at the worst evaluation, and is at least one per cent high.
    """
    up = ticks(min(99.0, *(y for _, y in scores)), 100.0)
    return YAxis(title=f"{answers} classified right, %", ticks=up)


def throughput(record: RunData) -> tuple[Points, str]:
    """Return samples or tokens a second by step, and which of them.

    A run whose batch was changed on its way has none: rows do not say their batch.
    """
    batch = record.value("data.batch")
    if not isinstance(batch, int) or record.batch_changed:
        return [], ""
    count, unit = batch, "samples/s"
    if record.tokens_per_sample:
        count, unit = batch * record.tokens_per_sample, "tokens/s"
    times = metric_points(record.train, "step_s")
    return [(step, count / seconds) for step, seconds in times if seconds > 0], unit


def attempt_marks(record: RunData) -> list[AxisMark]:
    """Return where the run was resumed, and where it was changed as it was."""
    changed = {
        each.step: "; ".join(change_texts(each))
        for each in record.history
        if each.changes and each.step
    }
    steps = sorted({*changed, *(row["step"] for row in record.resumes)})
    return [
        AxisMark(
            place=step,
            label=f"{'change' if step in changed else 'resume'} {number}",
            title=f"from step {step:,}: {changed[step]}" if step in changed else "",
        )
        for number, step in enumerate(steps, start=1)
    ]


def training_loss(record: RunData) -> Points:
    """Return the training loss, averaged over neighbouring steps."""
    return downsample(metric_points(record.train, "loss"), fmean)


def gradient_norms(record: RunData) -> Points:
    """Return the norm of the gradient, the largest of neighbouring steps."""
    # A mean would hide the one step that was far too long.
    return downsample(metric_points(record.train, "gradient_norm"), max)


def metric_points(rows: Sequence[JsonRow], key: str) -> Points:
    """Take one column by step; what is missing or not a number is left out."""
    found = ((row["step"], row.get(key)) for row in rows)
    return [(float(step), float(y)) for step, y in found if is_finite_number(y)]


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Tell whether a value is there and finite, as a float too."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def steps_per_point(count: int) -> int:
    """Return how many of `count` steps one point of a curve stands for."""
    return -(-count // _MAX_POINTS)


def downsample(curve: Points, reduce: Callable[[list[float]], float]) -> Points:
    """Reduce a curve to a few hundred points by joining neighbours.

    Args:
        curve: (step, value) by step.
        reduce: the value that stands for a group: its mean or its median.

    Returns:
        One point a group, at the group's last step.
    """
    # An empty curve has groups of none: a step of zero would be an error.
    size = steps_per_point(len(curve)) or 1
    groups = [curve[at : at + size] for at in range(0, len(curve), size)]
    return [(group[-1][0], reduce([y for _, y in group])) for group in groups]


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
            [
                Curve(
                    stroke="forward", points=forecast, label="forecast", name="forecast"
                ),
                Curve(stroke="backward", points=measured, label=label, name="measured"),
            ],
            XAxis(title="epochs before", ticks=across, end=last),
            YAxis(
                title=unit,
                ticks=ticks(0.0, max(y for _, y in (*forecast, *measured))),
            ),
        )
        figures.append(drawn)
    how = (
        "Both follow from the order of the samples alone, which is a function of the "
        f"seed; {format_count(found['partitions'])} partitions. Distance: half the sum "
        "of differences between the parts of each class in a partition and overall, "
        "the mean over partitions."
    )
    return MixingSection(figures=figures, how=how)
