"""What a run learned: its curves, drawn from the lines of `metrics.jsonl`."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any, Final, TypeGuard

from jaxdist.launch.report.figure import Figure, make_figure
from jaxdist.launch.report.line_chart import Curve
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import ticks
from jaxdist.launch.run_folder.jsonl import JsonRow

Points = list[tuple[float, float]]

_MAX_POINTS: Final = 300


def learning_figures(record: RunData) -> list[Figure]:
    """Draw every curve the run has lines for; a run without steps has none."""
    drawn = (
        _loss_figure(record),
        _accuracy_figure(record),
        _learning_rate_figure(record),
        _step_time_figure(record),
    )
    return [one for one in drawn if one is not None]


def training_loss(record: RunData) -> Points:
    """Thin the training loss out: each point is the mean of as many steps."""
    return downsample(metric_points(record.train, "loss"), fmean)


def metric_points(rows: Sequence[JsonRow], key: str) -> Points:
    """Take one column by step; what is missing or not a number is left out."""
    found = ((row["step"], row.get(key)) for row in rows)
    return [(float(step), float(y)) for step, y in found if is_finite_number(y)]


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Whether a value is there and finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def steps_per_point(count: int) -> int:
    """How many steps one point of a curve stands for."""
    return -(-count // _MAX_POINTS)


def downsample(curve: Points, reduce: Callable[[list[float]], float]) -> Points:
    """Join neighbouring points so that a curve has at most some hundred.

    Args:
        curve: (step, value) by step.
        reduce: the value that stands for a group: its mean or its median.

    Returns:
        One point a group, at the group's last step.
    """
    size = steps_per_point(len(curve)) or 1
    groups = [curve[at : at + size] for at in range(0, len(curve), size)]
    return [(group[-1][0], reduce([y for _, y in group])) for group in groups]


def first_nonfinite_step(record: RunData) -> int | None:
    """Find the first step whose loss was recorded and is no number."""
    return next(
        (
            r["step"]
            for r in record.train
            if "loss" in r and not is_finite_number(r["loss"])
        ),
        None,
    )


def _loss_figure(record: RunData) -> Figure | None:
    train, test = training_loss(record), metric_points(record.tests, "loss")
    curves = _labelled_curves(
        ("forward", "training", train), ("backward", "test", test)
    )
    if not curves:
        return None
    up = ticks(0.0, max(y for curve in curves for _, y in curve.points))
    return _step_figure(record, "Loss", "cross-entropy, nats", curves, up)


def _accuracy_figure(record: RunData) -> Figure | None:
    share = metric_points(record.tests, "accuracy")
    if not share:
        return None
    curve = [(step, 100 * y) for step, y in share]
    label = f"test, {curve[-1][1]:.2f} at the end"
    up = ticks(min(99.0, *(y for _, y in curve)), 100.0)
    lines = [Curve(stroke="backward", points=curve, label=label)]
    unit = "samples classified right, %"
    return _step_figure(record, "Test accuracy", unit, lines, up, labels_below=True)


def _learning_rate_figure(record: RunData) -> Figure | None:
    every = metric_points(record.train, "learning_rate")
    if not every:
        return None
    peak = max(every, key=lambda point: point[1])
    label = f"peak {peak[1]:.3g} at step {peak[0]:,.0f}"
    curve = downsample(every, lambda group: group[-1])
    lines = [Curve(stroke="backward", points=curve, label=label, peak=peak)]
    up = ticks(0.0, 1.15 * peak[1])
    return _step_figure(record, "Learning rate", "learning rate", lines, up)


def _step_time_figure(record: RunData) -> Figure | None:
    curve = downsample(
        [(s, 1e3 * y) for s, y in metric_points(record.train, "step_s")], median
    )
    if not curve:
        return None
    label = f"{record.run.step_s * 1e3:,.1f} median"
    lines = [Curve(stroke="backward", points=curve, label=label)]
    up = ticks(0.0, 1.2 * max(y for _, y in curve))
    return _step_figure(record, "Step time", "time a step, ms", lines, up)


def _labelled_curves(*named: tuple[str, str, Points]) -> list[Curve]:
    return [
        Curve(stroke=stroke, points=line, label=f"{name}, {line[-1][1]:.3f} at the end")
        for stroke, name, line in named
        if line
    ]


def _step_figure(
    record: RunData,
    name: str,
    unit: str,
    curves: Sequence[Curve],
    y_ticks: Sequence[float],
    *,
    labels_below: bool = False,
) -> Figure:
    """Draw curves over the steps of a run, and where it was resumed."""
    last = float(max(row["step"] for row in (*record.train, *record.tests)))
    return make_figure(
        name,
        unit,
        curves,
        x_max=last,
        x_ticks=[tick for tick in ticks(0.0, last) if tick <= last],
        y_ticks=y_ticks,
        x_title="step",
        resume_steps=[row["step"] for row in record.resumes],
        labels_below=labels_below,
    )
