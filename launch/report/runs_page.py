"""Several runs on one page: their curves in one chart each, and what differs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.config.tree import flatten_config, format_value
from jaxdist.launch.report.charts import (
    SERIES_STROKES,
    Curve,
    Figure,
    XAxis,
    YAxis,
    draw_line_chart,
    ticks,
)
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.report.learning_curves import (
    Points,
    accuracy_axis,
    accuracy_points,
    downsample,
    gradient_norms,
    metric_points,
    step_axis,
    throughput,
    training_loss,
)
from jaxdist.launch.report.run_record import RunData, read_run_data
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import (
    ConfigLock,
    changed_keys,
    changed_packages,
    read_config_lock,
)
from jaxdist.launch.terminal.run_summary import pluralize


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in the table of outcomes."""

    name: str
    report: str
    """Its own page, from this one."""
    stroke: str
    plan: str
    cells: Sequence[str]
    """Texts below `_HEADS`."""


_HEADS: Final = (
    *("Steps", "Test accuracy", "Test loss", "Step time", "Throughput"),
    *("Memory a device", "First step", "Wall time"),
)


def write_runs_page(folders: Sequence[RunFolder], page: Path) -> Path:
    """Write one page of several runs, whose first is what the others differ from.

    Args:
        folders: at least two runs.
        page: the file.

    Raises:
        BadInput: too many runs, the same one twice, or a damaged file.
    """
    paths = [folder.path.resolve() for folder in folders]
    if len(paths) > len(SERIES_STROKES) or len(set(paths)) < len(paths):
        raise BadInput(
            "these runs cannot stand beside each other",
            rule=f"at most {len(SERIES_STROKES)} runs, each named once",
            values=", ".join(folder.name for folder in folders),
            remedy=f"jaxdist report {' '.join(f.name for f in folders[:2])}",
        )
    records = [read_run_data(folder.path) for folder in folders]
    locks = [read_config_lock(folder) for folder in folders]
    # Runs of two folders may have one name.
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    rows = []
    for name, folder, record, stroke in zip(names, folders, records, SERIES_STROKES):
        row = RunRow(
            name=name,
            report=os.path.relpath(folder.report, page.parent),
            stroke=stroke,
            plan=record.plan.title if record.plan else "plan not recorded",
            cells=_outcome(record),
        )
        rows.append(row)
    context = {
        "title": f"{pluralize(len(rows), 'run')}: {', '.join(names)}",
        "heads": _HEADS,
        "rows": rows,
        "figures": _figures(records, names),
        "differences": _differences(locks),
    }
    write_atomic(page, render_template(read_resource("runs.html.j2"), context))
    return page


def _outcome(record: RunData) -> tuple[str, ...]:
    run = record.run
    count = record.tokens_per_sample or 1
    unit = "tokens/s" if record.tokens_per_sample else "samples/s"
    rate = f"{count * run.samples_per_s:,.0f} {unit}" if run.samples_per_s else ""
    return (
        format_count(run.steps),
        "" if run.accuracy is None else format_percent(run.accuracy, 2),
        "" if run.loss is None else f"{run.loss:.4g}",
        format_duration(run.step_s) if run.step_s else "",
        rate,
        format_size(run.memory_bytes) if run.memory_bytes else "",
        format_duration(run.first_step_s) if run.first_step_s else "",
        format_duration(run.wall_s) if run.wall_s else "",
    )


def _differences(locks: Sequence[ConfigLock]) -> list[tuple[str, list[str]]]:
    """Return keys and packages that not all runs share, with the value of each run."""
    first, *others = locks
    # As dicts, which keep the order of the configuration.
    keys, packages = dict[str, None](), dict[str, None]()
    for other in others:
        changes = changed_keys(first.resolved.config, other.resolved.config)
        keys |= dict.fromkeys(change.key for change in changes)
        versions = changed_packages(first, other)
        packages |= dict.fromkeys(change.key for change in versions)
    keys.pop("run.name", None)  # it stands above the columns
    configs = [flatten_config(lock.resolved.config) for lock in locks]
    found = [(key, [format_value(c[key]) for c in configs]) for key in keys]
    return found + [
        (f"package {name}", [lock.packages.get(name, "") for lock in locks])
        for name in packages
    ]


def _figures(records: Sequence[RunData], names: Sequence[str]) -> list[Figure]:
    """Draw the curves of all runs by quantity, where at least one run has it."""
    known = [record for record in records if record.train or record.tests]
    if not known:
        return []
    x = step_axis(known)
    # Steps of other batches are of other numbers of samples: epochs compare them.
    sizes = [record.epoch_steps for record in records]
    by_epoch = x.epoch is None and all(sizes)
    if by_epoch:
        ends = [record.last_step / (record.epoch_steps or 1) for record in known]
        numbers = [tick for tick in ticks(0.0, max(ends)) if tick <= max(ends)]
        x = XAxis(title="epoch", ticks=numbers, end=max(ends))
    rates = {throughput(record)[1] for record in records} - {""}
    columns: list[tuple[str, str, Callable[[RunData], Points]]] = [
        ("Training loss", "loss", training_loss),
        ("Test loss", "loss", lambda one: metric_points(one.tests, "loss")),
        ("Test accuracy", "", accuracy_points),
        ("Gradient norm", "norm of the whole gradient", gradient_norms),
        (
            "Throughput",
            " or ".join(sorted(rates)),
            lambda one: downsample(throughput(one)[0], median),
        ),
        (
            "Learning rate",
            "learning rate",
            # A mean would take the top off a short peak.
            lambda one: downsample(metric_points(one.train, "learning_rate"), max),
        ),
    ]
    figures = []
    for title, unit, read in columns:
        curves = []
        for record, name, stroke, size in zip(records, names, SERIES_STROKES, sizes):
            points = read(record)
            if by_epoch:
                points = [(step / (size or 1), y) for step, y in points]
            if points:
                label = f"{name} {points[-1][1]:.4g}"
                curve = Curve(stroke=stroke, points=points, label=label, name=name)
                curves.append(curve)
        if not curves:
            continue
        drawn = [point for curve in curves for point in curve.points]
        up = ticks(0.0, max(y for _, y in drawn))
        y = YAxis(title=unit, ticks=up) if unit else accuracy_axis(drawn, "answers")
        log = title.endswith("loss")
        figure = draw_line_chart(title, curves, x, y, offers_log=log, labelled=False)
        figures.append(figure)
    return figures
