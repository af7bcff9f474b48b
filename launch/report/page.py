"""The page: its template, filled with what the files of a run say."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.files import write_atomic
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.core.text.theme import SETTING_SOURCES
from jaxdist.launch.report import (
    goodput,
    header,
    learning_curves,
    pipeline_timeline,
    predicted_vs_measured,
    samples_section,
    scaling_section,
    target_section,
    traffic,
)
from jaxdist.launch.report.header import format_utc, header_facts, key_figures
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.report.learning_curves import is_finite_number, training_loss
from jaxdist.launch.report.run_record import RunData, change_texts, read_run_data
from jaxdist.launch.run_folder.folder import JsonRow, RunFolder, run_file_errors
from jaxdist.launch.run_folder.next_commands import suggest_commands
from jaxdist.launch.terminal.run_summary import (
    phases_by_size,
    pluralize,
)
from jaxdist.pipeline.plan_schedule import plan_schedule

SECTIONS: Final = MappingProxyType(
    {
        "learning": "Learning",
        "samples": "Samples",
        "time": "Time",
        "bytes": "Bytes",
        "memory": "Memory",
        "predicted": "Prediction",
        "pipeline": "Pipeline",
        "target": "Compiled",
        "changes": "Plan changes",
        "scaling": "Scaling",
        "shuffle": "Shuffle",
        "goodput": "Goodput",
        "checkpoints": "Checkpoints",
        "configuration": "Configuration",
    }
)
"""Sections by id, in the order of the page, with what leads to them."""
_EXPERIMENT_SOURCES: Final = ("default", "experiment")


def learning_caption(record: RunData) -> Markup:
    """Say what was reached, or what kept the run from it."""
    losses = ((row["step"], row["loss"]) for row in record.train if "loss" in row)
    broken = next((step for step, loss in losses if not is_finite_number(loss)), None)
    if broken is not None:
        text = "The training loss is not finite from <b>step {}</b> on, and not drawn."
        return Markup(text).format(format_count(broken))
    points = training_loss(record)
    if not points:
        return Markup("No step was recorded.")
    first, last = points[0][1], points[-1][1]
    if first == last:
        went = Markup("training loss stayed at {:.3f}").format(last)
    else:
        text = "training loss {} from {:.3f} to <b>{:.3f}</b>"
        verb = "fell" if last < first else "rose"
        went = Markup(text).format(verb, first, last)

    scored = [row for row in record.tests if row.get("accuracy") is not None]
    if not scored:
        return Markup("The run was not evaluated; {}.").format(went)
    end, best = scored[-1], max(scored, key=lambda row: row["accuracy"])
    share, top = end["accuracy"], best["accuracy"]
    # A binomial share of n samples has the standard error sqrt(p (1 - p) / n). An end
    # within two of them below the best is chance, not forgetting.
    noise = 2 * math.sqrt(max(top * (1 - top), 1e-12) / (end.get("samples") or 1))
    if top - share > noise:
        text = "Test accuracy ended at <b>{}</b>, below its best of {} at step {}; {}."
        at = format_count(best["step"])
        shares = format_percent(share, 2), format_percent(top, 2)
        return Markup(text).format(*shares, at, went)
    epochs = int(end.get("epoch", len(scored)))
    if record.epoch_steps:
        # A row has the epoch of its last sample: one less where a step ends an epoch.
        # The quotient may be a rounding error below a whole number.
        epochs = int(end["step"] / record.epoch_steps + 1e-9)
    after = pluralize(epochs, "epoch") if epochs else pluralize(end["step"], "step")
    text = "Test accuracy reached <b>{}</b> after {}; {}."
    return Markup(text).format(format_percent(share, 2), after, went)


def time_caption(record: RunData) -> Markup:
    """Say which share of the wall time went into steps, and what took the rest."""
    phases = phases_by_size(record.run)
    whole = sum(seconds for _, seconds in phases)
    if not whole:
        return Markup("Time by phase was not recorded.")
    shares = {name: seconds / whole for name, seconds in phases}
    steps = shares.pop("compute", 0.0)
    if not steps:
        return Markup("No step finished in {}.").format(format_duration(whole))
    shares.pop("other", None)  # it has no name that would tell a reader anything
    # Phases come longest first: the first of the rest is the next largest.
    name, share = next(iter(shares.items()), ("", 0.0))
    parts = format_percent(share), format_duration(whole), format_percent(steps)
    if share > steps:
        text = "<b>{} took {}</b> of {}, more than the training steps ({})."
        found = Markup(text).format(name.capitalize(), *parts)
    else:
        following = f", followed by {name} with {parts[0]}" if name else ""
        text = "Training steps took <b>{}</b> of {}{}."
        found = Markup(text).format(parts[2], parts[1], following)

    # The wait for a batch is a phase of its own, but a reader feels it as slow steps.
    wait = shares.get("input", 0.0) / (shares.get("input", 0.0) + steps)
    if wait < 0.05:
        return found
    text = " Steps spent {} of their time waiting for input."
    return found + Markup(text).format(format_percent(wait))


def memory_caption(record: RunData) -> Markup:
    """Say what the step needs on a device."""
    if not record.run.memory_bytes:
        return Markup("Not measured: the run has no summary.")
    text = "The compiled step needs <b>{}</b> on {}."
    many = record.run.devices > 1
    devices = f"each of {record.run.devices:,} devices" if many else "its device"
    return Markup(text).format(format_size(record.run.memory_bytes), devices)


def prediction_caption(record: RunData) -> Markup:
    """Say how well the step was predicted, or how to have it compared."""
    found = record.compared
    if not found:
        text = "Not compared: <code>jaxdist compare {} --cluster NAME</code>."
        return Markup(text).format(record.run.name)
    step, inside = found["step"], "inside" if found["inside_interval"] else "outside"
    text = (
        "The step took <b>{}</b>; <b>{}</b> was predicted for cluster {}: {} accurate, "
        "{} the interval of {} to {}."
    )
    return Markup(text).format(
        format_duration(step["measured"]),
        format_duration(step["predicted"]),
        found["cluster"],
        format_percent(step["accurate"] or 0.0),
        inside,
        *map(format_duration, found["interval_s"]),
    )


def pipeline_caption(record: RunData) -> Markup:
    """Say what the pipeline of a plan is, and how large its bubble is."""
    plan = record.plan
    if plan is None or plan.stages == 1:
        return Markup("No pipeline in this plan.")
    micro = record.value("optim.accumulate")
    if not isinstance(micro, int):
        text = "{} stages; the number of microbatches was not recorded."
        return Markup(text).format(plan.stages)
    # A pipeline is filled and drained once a step. Its microbatches are the parts of
    # a batch whose gradients are accumulated.
    table = plan_schedule(plan, micro)
    text = "{}, {} stages, {}: {} ticks with a bubble of <b>{}</b>."
    found = Markup(text).format(
        plan.pipe.schedule,
        plan.stages,
        "1 microbatch" if micro == 1 else f"{micro} microbatches",
        format_count(table.length),
        format_percent(table.bubble_fraction),
    )
    if not record.compared:
        more = " In seconds: <code>jaxdist compare {} --cluster NAME</code>."
        found += Markup(more).format(record.run.name)
    return found


def checkpoint_caption(record: RunData) -> Markup:
    """Say how many checkpoints there are, their cost, and how often one was used."""
    written = finished_checkpoints(record)
    run = record.run
    if not written and run.checkpoint is None:
        return Markup("No checkpoint was written.")
    # A run that was killed has the newest step in its spans alone. One that resumed
    # and wrote none since has it in its summary.
    newest = max([run.checkpoint or 0, *(row.get("step") or 0 for row in written)])
    count = pluralize(len(written), "checkpoint")
    took = format_duration(sum(row["seconds"] for row in written))
    text = "{} paused training for {}; the newest is from <b>step {}</b>. "
    found = Markup(text).format(count, took, format_count(newest))

    # The summary tells the last resume alone; steps that ran twice tell each one.
    again = sum(row["again"] for row in record.resumes)
    if record.resumes:
        times = pluralize(len(record.resumes), "time")
        ran = f"{pluralize(again, 'step')} {'was' if again == 1 else 'were'}"
        ran = ran if again else "no step was"
        return found + Markup("Resumed {}; {} repeated.").format(times, ran)
    if run.resumed_at is not None:
        text = "Resumed at step {}; no step was repeated."
        return found + Markup(text).format(format_count(run.resumed_at))
    return found + Markup("Never resumed.")


def config_caption(record: RunData) -> Markup:
    """Say how many values there are and where each was set."""
    if not record.values:
        return Markup("No <code>config.lock.json</code> could be read.")
    by = [row["by"] for row in record.values.values()]
    places = {
        "default": "by default",
        "experiment": "by the experiment",
        "command line": "on the command line",
    }
    counts = [f"{by.count(who)} {place}" for who, place in places.items() if who in by]
    found = Markup("{}: {}.").format(pluralize(len(by), "value"), ", ".join(counts))
    changed = {key for each in record.history for key in each.changes}
    if not changed:
        return found
    return found + Markup(" Changed since the run began: <b>{}</b>.").format(
        ", ".join(sorted(changed))
    )


@dataclass(frozen=True, kw_only=True)
class AttemptChanges:
    """A start of the run, as a row of the table of its history."""

    step: str
    when: str
    typed: str
    changes: str


def history_rows(record: RunData) -> list[AttemptChanges]:
    """Return a row for each start of a run; none where it had but one."""
    rows = [
        AttemptChanges(
            step=format_count(each.step),
            when=format_utc(each.time),
            typed=shlex.join(each.command) or "not recorded",
            changes="; ".join(change_texts(each)) or "nothing",
        )
        for each in record.history
    ]
    return rows if len(rows) > 1 else []


def finished_checkpoints(record: RunData) -> list[JsonRow]:
    """Return the span of each checkpoint that was finished."""
    spans = (row for row in record.spans if row["name"] == "checkpoint")
    return [row for row in spans if not row.get("unfinished")]


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from whatever files the run left there.

    Args:
        folder: folder of the run.

    Returns:
        The report's path.

    Raises:
        BadInput: the folder does not exist, or a file of it is damaged.
    """
    record, files_of_run = read_run_data(folder), RunFolder(folder)
    with run_file_errors(files_of_run.comparison):
        prediction = prediction_caption(record)
        beside = predicted_vs_measured.prediction_section(record)
        pipeline = pipeline_timeline.pipeline_section(record)
        moved = traffic.traffic_section(record)
    with run_file_errors(files_of_run.shuffle_quality):
        mixed = learning_curves.mixing_caption(record)
        mixing = learning_curves.mixing_section(record)
    study = (record.study or {}).get("path", folder.parent / "scale.json")
    with run_file_errors(Path(study)):
        scaled = scaling_section.scaling_caption(record)
        scaling = scaling_section.scaling_section(record)
    with run_file_errors(files_of_run.compiled_step):
        fits = target_section.target_caption(record.compiled, record.run.name)
        compiled = target_section.target_section(record.compiled)
    samples = samples_section.samples_section(record)
    plan, run = record.plan, record.run
    setters = [row["by"] for row in record.values.values()]
    values = [
        {
            "key": key,
            "text": _format_setting(row["value"]),
            "by": row["by"],
            # Colour alone would not tell sources apart in print, so each has a mark.
            "mark": SETTING_SOURCES.get(row["by"], SETTING_SOURCES["default"])[0],
        }
        for key, row in record.values.items()
    ]
    # Files that are no whole run cannot be resumed, only started again.
    again = [record.command] if record.command else []
    if files_of_run.has_run or run.status != "stopped":
        again = suggest_commands(run, files_of_run)
    # A caption is there for every section, also where the run left nothing to draw:
    # then it says why, or which command measures it, in a fold at the end.
    captions_by_section = {
        "learning": learning_caption(record),
        "samples": samples_section.samples_caption(record),
        "time": time_caption(record),
        "bytes": traffic.traffic_caption(record),
        "memory": memory_caption(record),
        "predicted": prediction,
        "pipeline": pipeline_caption(record),
        "target": fits,
        "changes": goodput.replan_caption(record),
        "scaling": scaled,
        "shuffle": mixed,
        "goodput": goodput.goodput_caption(record),
        "checkpoints": checkpoint_caption(record),
        "configuration": config_caption(record),
    }
    wall_time, phases = goodput.wall_time_charts(run)
    changes, attempts = goodput.replan_rows(record), goodput.goodput_section(record)
    drawn = {
        "learning": True,
        "samples": samples,
        "time": phases,
        "bytes": moved,
        "memory": beside and beside.memory,
        "predicted": beside,
        "pipeline": plan is not None and plan.stages > 1,
        "target": compiled,
        "changes": changes,
        "scaling": scaling,
        "shuffle": mixing,
        "goodput": attempts,
        "checkpoints": record.resumes,
        "configuration": True,
    }
    # The names are those of the template, which refuses a page that lacks one.
    context = {
        "record": record,
        "run": run,
        "title": plan.title if plan else "plan not recorded",
        "drawing": header.draw_mesh(plan) if plan else None,
        "caption": header.mesh_caption(plan) if plan else "",
        "facts": header_facts(record),
        "tiles": key_figures(record),
        "find": captions_by_section,
        "sections": SECTIONS,
        "shown": [name for name in SECTIONS if drawn[name]],
        "brief": [
            (title, captions_by_section[name])
            for name, title in SECTIONS.items()
            if not drawn[name]
        ],
        "figures": learning_curves.learning_figures(record),
        "steps_a_point": learning_curves.steps_per_point(len(record.train)),
        "samples": samples,
        "wall_time": wall_time,
        "phases": phases,
        "moved": moved,
        "compiled": compiled,
        "changes": changes,
        "scaling": scaling,
        "mixing": mixing,
        "attempts": attempts,
        "history": history_rows(record),
        "beside": beside,
        "pipeline": pipeline,
        "values": values,
        "changed": [row for row in values if row["by"] not in _EXPERIMENT_SOURCES],
        "origins": [source for source in SETTING_SOURCES if source in setters],
        "setters": setters,
        "utc": format_utc,
        "count": format_count,
        "duration": format_duration,
        "next": again,
    }
    report = files_of_run.report
    write_atomic(report, render_template(read_resource("report.html.j2"), context))
    return report


def _format_setting(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, list):
        return ", ".join(map(_format_setting, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
