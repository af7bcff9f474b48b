"""The top of the page: facts of a run, its key figures and a drawing of its mesh."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from jaxdist.core.axes import POSITION_AXES
from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.report.charts import tag
from jaxdist.launch.report.learning_curves import perplexity_points
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_summary import (
    best_text,
    format_parameters,
    pluralize,
    step_time_percentiles,
)


@dataclass(frozen=True, kw_only=True)
class KeyFigure:
    """A key figure; without a value the note says why."""

    name: str
    note: str
    value: str = ""
    unit: str = ""


def header_facts(record: RunData) -> dict[str, str]:
    """Name the run's result, time, model, data, machine, software and command."""
    run = record.run
    if record.summarised:
        result = f"{run.status} at step {format_count(run.steps)}"
        if run.accuracy is not None:
            result += f", test accuracy {format_percent(run.accuracy, 2)}"
        if run.best is not None:
            result += f"; {best_text(run.best)}"
    else:
        # A phase without an end is what the process was in when it was last heard of.
        during = next((s["name"] for s in record.spans if s.get("unfinished")), None)
        result = f"no summary: still running, or killed at step {run.steps:,}"
        result += f"; last seen in {during}" if during else ""

    # From when to when is over all attempts, the wall time that of the last one.
    times = [row["time"] for row in (*record.train, *record.tests) if row.get("time")]
    times += [s["start"] for s in record.spans]
    times += [s["start"] + s["seconds"] for s in record.spans]
    ran = ""
    if times:
        start, end = format_utc(min(times)), format_utc(max(times))
        end = end[11:] if start[:10] == end[:10] else end  # the same day is said once
        wall = f", {format_duration(run.wall_s)}" if run.wall_s else ""
        ran = f"{start} to {end} UTC{wall}"

    machine = ""
    if record.plan is not None or record.summarised:
        kind = f" ({run.platform})" if record.summarised else ""
        machine = pluralize(run.devices, "device") + kind
    model = str(record.value("model.name", ""))
    seed = "seed" in record.values and f"seed {record.value('seed')}"
    facts = {
        "Result": result,
        "Ran": ran,
        "Model": _join_parts(
            model,
            run.parameters and format_parameters(run.parameters, run.frozen_parameters),
        ),
        "Data": _join_parts(record.value("data.name", ""), run.shuffle),
        "Machine": machine,
        "Numbers": _join_parts(record.value("precision", ""), seed),
        "Software": ", ".join(f"{name} {v}" for name, v in record.packages.items()),
        "Command": record.command,
    }
    return {name: text or "not recorded" for name, text in facts.items()}


def _join_parts(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def format_utc(seconds: float | None) -> str:
    """Write Unix seconds as a date and time in UTC."""
    if seconds is None:
        return "not recorded"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def key_figures(record: RunData) -> list[KeyFigure]:
    """Return the six key figures, those that were not measured without a value."""
    run = record.run
    accuracy = ("", "not evaluated")
    if run.accuracy is not None:
        # A language model answers once a token, so its answers are more than samples.
        single = record.answer_noun == "samples"
        count = run.held_out if single else run.answers
        note = f"{run.correct:,} of {count:,} {record.answer_noun} held out, each once"
        if points := perplexity_points(record):
            note += f"; perplexity {points[-1][1]:,.2f}"
        accuracy = (format_percent(run.accuracy, 2), note)

    step, rate = ("", ""), ("", "")
    if run.step_s:
        median, low, high, unit = step_time_percentiles(run)
        step = (f"{median} {unit}", f"median; p5 {low}, p95 {high}")
        batch = record.value("data.batch")
        count = record.tokens_per_sample or 1
        unit = "tokens/s" if record.tokens_per_sample else "samples/s"
        # The rate of a device compares runs on different numbers of them.
        each = f"{count * run.samples_per_s / run.devices:,.0f} a device"
        whole = f"global batch {batch:,}" if isinstance(batch, int) else ""
        rate = (f"{count * run.samples_per_s:,.0f} {unit}", _join_parts(each, whole))

    memory = run.memory_bytes and format_size(run.memory_bytes)
    first = run.first_step_s and format_duration(run.first_step_s)
    wall = sum(run.phases_s.values())
    share = format_percent(run.phases_s.get("compute", 0.0) / wall) if wall else ""
    found = {
        "Test accuracy": accuracy,
        "Step time": step,
        "Throughput": rate,
        "Memory a device": (
            memory,
            f"for the compiled step, on each of {pluralize(run.devices, 'device')}",
        ),
        "First step": (first, "from the command to the first finished step"),
        "Time in steps": (share, f"of {format_duration(wall)}, the rest is below"),
    }
    figures = []
    for name, (written, note) in found.items():
        # Numbers are set large and their units small. A zero was not measured.
        value, _, unit = str(written or "").rpartition(" ")
        reason = note if value or name == "Test accuracy" else "not recorded"
        figures.append(KeyFigure(name=name, value=value, unit=unit, note=reason))
    return figures


_CELL: Final = 19
_PITCH: Final = 22
_MAX_DRAWN: Final = 8
_MIN_LABEL_WIDTH: Final = 50
"""Least width of a frame that has room for `stage 0`, not for the number alone."""
_VERTICAL_AXES: Final = (*POSITION_AXES, "tensor")


def draw_mesh(plan: Plan) -> Markup:
    """Draw the devices: stages side by side, batch shards across, slices down."""
    # A few of each are enough to see the shape; the caption says what is left out.
    stages = min(plan.mesh.pipe, _MAX_DRAWN)
    columns = min(_batch_shards(plan), _MAX_DRAWN)
    rows = min(plan.mesh.size(*_VERTICAL_AXES), _MAX_DRAWN)
    frame_width, cell = columns * _PITCH + 7, {"width": _CELL, "height": _CELL}
    marks = []
    for stage in range(stages):
        left = stage * (frame_width + 10)
        frame = {"width": frame_width - 1, "height": rows * _PITCH + 7}
        # Half a pixel: a line of one pixel is sharp there.
        marks.append(tag("rect", class_="gl-f", x=left + 0.5, y=18.5, **frame))
        for column in range(columns):
            for row in range(rows):
                at = {"x": left + 5 + _PITCH * column, "y": 23 + _PITCH * row}
                marks.append(tag("rect", class_="t-backward", **at, **cell))
        name = f"stage {stage}" if frame_width >= _MIN_LABEL_WIDTH else str(stage)
        named = name if plan.mesh.pipe > 1 else ""
        middle = {"x": left + frame_width / 2, "y": 11, "text_anchor": "middle"}
        marks.append(tag("text", named, class_="tick", **middle))

    width, height = stages * (frame_width + 10), rows * _PITCH + 29
    title = f"Mesh of the plan {plan.title}"
    told = (tag("title", title), tag("desc", mesh_caption(plan)))
    # Cells are whole pixels: this drawing is not stretched to the width of the page.
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag("svg", *told, *marks, role="img", aria_label=title, **size)


def mesh_caption(plan: Plan) -> str:
    """Say what the directions of the drawing are.

    >>> from jaxdist.core.plan import MeshShape
    >>> mesh_caption(Plan(mesh=MeshShape(data=4, spatial_h=2)))
    'data 4 across, spatial_h 2 down'
    >>> mesh_caption(Plan(mesh=MeshShape(spatial_h=2), spatial_end="block3"))
    'spatial_h 2 down, images whole from block3 on'
    >>> mesh_caption(Plan(mesh=MeshShape(data=2, tensor=2), placement=("data",)))
    'data 2 across, tensor 2 down, data innermost on devices'
    """
    used = [(name, size) for name, size in plan.mesh.items() if size > 1]
    across = [f"{n} {s}" for n, s in used if n not in _VERTICAL_AXES and n != "pipe"]
    down = [f"{n} {s}" for n, s in used if n in _VERTICAL_AXES]
    parts = [f"{' x '.join(across)} across"] if across else []
    parts += [f"{' x '.join(down)} down"] if down else []
    end = plan.spatial_end
    own = ", samples dealt out" if plan.spatial_end_mode == "samples" else ""
    parts += [f"images whole from {end} on{own}"] if end else []
    parts += [f"pipe {plan.mesh.pipe} side by side"] if plan.mesh.pipe > 1 else []
    # Axes that are innermost have their collectives on the links inside a host.
    inner = " x ".join(plan.inside)
    parts += [f"{inner} innermost on devices"] if inner else []
    vertical = plan.mesh.size(*_VERTICAL_AXES)
    cut = max(plan.mesh.pipe, _batch_shards(plan), vertical) > _MAX_DRAWN
    parts += [f"{_MAX_DRAWN} drawn"] if cut else []
    return ", ".join(parts) or "one device"


def _batch_shards(plan: Plan) -> int:
    # Every axis that is neither stages nor slices of a sample shards the batch.
    return plan.mesh.devices // plan.mesh.pipe // plan.mesh.size(*_VERTICAL_AXES)
