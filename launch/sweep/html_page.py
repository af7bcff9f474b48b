"""The page of a sweep: its trials ranked, and drawn by what was varied."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from markupsafe import Markup

from jaxdist.core.files import write_atomic
from jaxdist.launch.report.charts import (
    PLOT_HEIGHT,
    Curve,
    Figure,
    XAxis,
    YAxis,
    draw_line_chart,
    format_tick,
    labelled_svg,
    percent_length,
    tag,
    ticks,
)
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.sweep.runner import format_drawn, format_metric
from jaxdist.launch.sweep.space import Parameter, ParameterRange, SearchSpace
from jaxdist.launch.sweep.study import SweepSettings, TrialRecord
from jaxdist.launch.terminal.run_summary import pluralize

Scale = Callable[[object], float]
"""From a value to its share of an axis, 0 to 1."""
_BEST: Final = 3
"""Trials that stand out in the drawings."""
_TALL: Final = 280


def write_page(
    folder: Path,
    settings: SweepSettings,
    space: SearchSpace,
    trials: Sequence[TrialRecord],
) -> Path:
    """Write `sweep.html` into the folder of a sweep; return it."""
    page = folder / "sweep.html"
    write_atomic(page, render_page(folder.name, settings, space, trials))
    return page


def render_page(
    name: str,
    settings: SweepSettings,
    space: SearchSpace,
    trials: Sequence[TrialRecord],
) -> str:
    """Write the page as one HTML document that loads nothing else."""
    counts = {
        state: sum(each.state == state for each in trials)
        for state in ("done", "pruned", "failed", "running")
    }
    told = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    drawn = [each for each in trials if each.value is not None and is_complete(each)]
    context = {
        "name": name,
        "headline": headline(settings, trials),
        "facts": {
            "Trials": f"{len(trials)} of {settings.trials}: {told or 'none yet'}",
            "Metric": f"{settings.metric}, "
            + ("more is better" if settings.maximizes else "less is better"),
            "Varied": ", ".join(each.text for each in space.parameters),
            "Fixed": " ".join(space.fixed) or "nothing beside the experiment",
            "Pruning": settings.pruner,
            "Seed": str(settings.seed),
        },
        "heads": ("rank", "trial", "state", settings.metric, *keys(space)),
        "numbers": {"rank", settings.metric} | set(number_keys(space)),
        "rows": table_rows(space, trials),
        "failed": [each for each in trials if each.state == "failed"],
        "coordinates": draw_coordinates(settings, space, drawn) if drawn else None,
        "beyond": _beyond(settings, drawn),
        "figures": [
            *(draw_scatter(each, settings, drawn) for each in space.parameters),
            *([draw_progress(settings, drawn)] if counts["done"] else []),
        ]
        if drawn
        else [],
    }
    return render_template(read_resource("sweep.html.j2", __package__), context)


def is_complete(trial: TrialRecord) -> bool:
    """Tell whether a trial has an outcome."""
    return trial.state in ("done", "pruned")


def keys(space: SearchSpace) -> tuple[str, ...]:
    """Return what is varied."""
    return tuple(each.key for each in space.parameters)


def number_keys(space: SearchSpace) -> tuple[str, ...]:
    """Return what is varied between two numbers."""
    return tuple(
        each.key for each in space.parameters if isinstance(each, ParameterRange)
    )


def headline(settings: SweepSettings, trials: Sequence[TrialRecord]) -> str:
    """Say which trial is best, and with what."""
    # Trials come with the best first.
    best = next((each for each in trials if each.state == "done"), None)
    if best is None:
        return "No trial has come to its end."
    drawn = ", ".join(f"{k} {format_drawn(v)}" for k, v in best.params.items())
    value = format_metric(best.value)
    return f"{best.name} is best: {settings.metric} {value} with {drawn}"


def table_rows(
    space: SearchSpace, trials: Sequence[TrialRecord]
) -> list[tuple[str, ...]]:
    """Return a row for each trial: rank, name, state, metric and what was drawn."""
    return [
        (
            str(rank) if each.state == "done" else "",
            each.name,
            each.state,
            format_metric(each.value) if each.value is not None else "",
            *(format_drawn(each.params.get(key, "")) for key in keys(space)),
        )
        for rank, each in enumerate(trials, start=1)
    ]


def draw_coordinates(
    settings: SweepSettings, space: SearchSpace, trials: Sequence[TrialRecord]
) -> Markup:
    """Draw each trial as a line over one axis for each parameter and the metric."""
    axes = [(each.key, *_axis(each)) for each in space.parameters]
    low, high = _metric_ends(settings, trials)
    axes.append((settings.metric, _linear(low, high), _end_labels(low, high)))
    places = [n / (len(axes) - 1) for n in range(len(axes))]
    lines = []
    # The best are drawn last, over the others.
    for rank, trial in reversed(list(enumerate(trials))):
        values = [*(trial.params.get(key) for key in keys(space)), trial.value]
        points = " ".join(
            f"{100 * x:.2f},{100 * (1 - scale(value)):.2f}"
            for x, (_, scale, _), value in zip(places, axes, values)
            if value is not None
        )
        # Colours by their names in the theme, which mean no passes here.
        look = "ln s-backward" if rank < _BEST else "ln s-forward"
        told = f"{trial.name}, {trial.state}: {format_metric(trial.value)}"
        opacity = 1 if rank < _BEST else 0.35
        dashes = None if trial.state == "done" else "2 3"
        line = {"points": points, "stroke_opacity": opacity, "stroke_dasharray": dashes}
        lines.append(tag("polyline", tag("title", told), class_=look, **line))
    inner = {"width": "100%", "height": _TALL, "viewBox": "0 0 100 100"}
    # Lines are stretched to the page. Texts must not be, and are drawn outside.
    stretch = {"preserveAspectRatio": "none", "overflow": "visible"}
    parts = []
    for x, (name, _, labels) in zip(places, axes):
        at = percent_length(x)
        parts.append(tag("line", class_="ax", x1=at, x2=at, y1=0, y2=_TALL))
        anchor = "start" if x == 0 else "end" if x == 1 else "middle"
        named = {"x": at, "y": _TALL + 34, "text_anchor": anchor}
        parts.append(tag("text", name, class_="val", **named))
        for share, label in labels:
            if share in (0, 1):
                y = -5.0 if share else _TALL + 15.0
                place = {"x": at, "y": y, "text_anchor": anchor}
            else:
                # Beside the axis, on the side that has room.
                side, dx = ("end", -6) if x == 1 else ("start", 6)
                y = round(_TALL * (1 - share), 2)
                place = {"x": at, "y": y, "dx": dx, "dy": 4, "text_anchor": side}
            parts.append(tag("text", label, class_="tick", **place))
    parts.append(tag("svg", *lines, **inner, **stretch))
    title = f"{pluralize(len(trials), 'trial')} by parameter and {settings.metric}"
    return labelled_svg(title, *parts, height=_TALL)


def draw_scatter(
    parameter: Parameter, settings: SweepSettings, trials: Sequence[TrialRecord]
) -> Figure:
    """Draw the metric of each trial over a parameter."""
    scale, labels = _axis(parameter)
    low, high = _metric_ends(settings, trials)
    up = ticks(low, high)
    parts = []
    for tick in up:
        y = percent_length(1 - (tick - up[0]) / (up[-1] - up[0]))
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        at = {"x": -8, "y": y, "dy": 4, "text_anchor": "end"}
        parts.append(tag("text", format_tick(tick), class_="tick", **at))
    for share, label in labels:
        at = {"x": percent_length(_inset(share)), "y": PLOT_HEIGHT + 17}
        parts.append(tag("text", label, class_="tick", **at, text_anchor="middle"))
    base = {"x1": 0, "x2": "100%", "y1": PLOT_HEIGHT, "y2": PLOT_HEIGHT}
    parts.append(tag("line", class_="ax", **base))
    for rank, trial in reversed(list(enumerate(trials))):
        value = trial.params.get(parameter.key)
        if value is None or trial.value is None:
            continue
        x = percent_length(_inset(scale(value)))
        # What is beyond the axis is drawn at its end: see `_metric_ends`.
        shown = min(up[-1], max(up[0], trial.value))
        y = percent_length(1 - (shown - up[0]) / (up[-1] - up[0]))
        told = f"{trial.name}, {trial.state}: {format_drawn(value)}, "
        title = tag("title", told + format_metric(trial.value))
        look = "m" if trial.state == "done" else "p"
        fill = "backward" if rank < _BEST else "forward"
        dot = {"cx": x, "cy": y, "r": 5 if rank < _BEST else 4}
        parts.append(tag("circle", title, class_=f"{look} t-{fill}", **dot))
    name = f"{settings.metric} by {parameter.key}"
    drawn = labelled_svg(name, *parts, height=PLOT_HEIGHT)
    scaled = isinstance(parameter, ParameterRange) and parameter.log
    below = f"{parameter.key}{', logarithmic' * scaled}"
    return Figure(name=name, unit=settings.metric, svg=drawn, below=below)


def draw_progress(settings: SweepSettings, trials: Sequence[TrialRecord]) -> Figure:
    """Draw the best metric after each trial that came to its end."""
    better = max if settings.maximizes else min
    # By when they began: they are given with the best first.
    done = sorted((each for each in trials if each.state == "done"), key=_number)
    points: list[tuple[float, float]] = []
    for each in done:
        assert each.value is not None  # a trial that is done has one
        best = each.value if not points else better(points[-1][1], each.value)
        points.append((float(each.number + 1), best))
    right = float(max(each.number for each in trials) + 1)
    values = [value for _, value in points]
    label = f"best, {format_metric(values[-1])}"
    return draw_line_chart(
        f"Best {settings.metric} so far",
        [Curve(stroke="backward", points=points, label=label)],
        XAxis(
            title="trials begun",
            ticks=[n for n in ticks(0.0, right) if n <= right and n % 1 == 0],
            end=right,
        ),
        YAxis(title=settings.metric, ticks=ticks(min(values), max(values))),
    )


def _number(trial: TrialRecord) -> int:
    return trial.number


def _inset(share: float) -> float:
    """Keep dots clear of the ends of an axis."""
    return 0.03 + 0.94 * share


def _metric_ends(
    settings: SweepSettings, trials: Sequence[TrialRecord]
) -> tuple[float, float]:
    """Return the ends of the axis of the metric.

    A trial that diverged would press all others onto one line: the axis ends at three
    times the distance of the median from the best, and what is worse is drawn there.
    """
    values = sorted(
        (each.value for each in trials if each.value is not None),
        reverse=settings.maximizes,
    )
    best, worst = values[0], values[-1]
    limit = best + 3 * (median(values) - best)
    ends = best, (max if settings.maximizes else min)(worst, limit)
    return min(ends), max(ends)


def _beyond(settings: SweepSettings, trials: Sequence[TrialRecord]) -> str:
    """Say which trials are drawn at the end of the metric's axis; empty if none is."""
    if not trials:
        return ""
    low, high = _metric_ends(settings, trials)
    values = [each.value for each in trials if each.value is not None]
    count = sum(not low <= value <= high for value in values)
    if not count:
        return ""
    limit = (
        f"below {format_metric(low)}"
        if settings.maximizes
        else (f"above {format_metric(high)}")
    )
    return f"{pluralize(count, 'trial')} {limit} at the end of the axis."


def _linear(low: float, high: float) -> Scale:
    def place(value: object) -> float:
        number = float(str(value))
        share = (number - low) / (high - low) if high > low else 0.5
        return min(1.0, max(0.0, share))

    return place


def _end_labels(low: float, high: float) -> list[tuple[float, str]]:
    return [(0.0, format_metric(low)), (1.0, format_metric(high))]


def _axis(parameter: Parameter) -> tuple[Scale, list[tuple[float, str]]]:
    """Return the scale of a parameter and its labels, each with its share."""
    if isinstance(parameter, ParameterRange):
        low, high = parameter.low, parameter.high
        ends = [(0.0, format_drawn(low)), (1.0, format_drawn(high))]
        if not parameter.log:
            return _linear(low, high), ends
        scale = _linear(math.log(low), math.log(high))
        return (lambda value: scale(math.log(float(str(value))))), ends
    choices = parameter.choices
    shares = [(n + 0.5) / len(choices) for n in range(len(choices))]
    by_choice = dict(zip(choices, shares))
    return (lambda value: by_choice[str(value)]), list(zip(shares, choices))
