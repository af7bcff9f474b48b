"""The sentence over each chart, computed from the run: good, bad or missing."""

import math

from markupsafe import Markup

from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.report.learning_curves import is_finite_number, training_loss
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.run_folder.jsonl import JsonRow
from jaxdist.launch.terminal.run_header import pluralize
from jaxdist.launch.terminal.run_summary import phases_by_size
from jaxdist.pipeline.plan_schedule import plan_schedule


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
    epochs = round(end.get("epoch", len(scored)), 2)
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
    return Markup("{}: {}.").format(pluralize(len(by), "value"), ", ".join(counts))


def finished_checkpoints(record: RunData) -> list[JsonRow]:
    """Return the span of each checkpoint that was finished."""
    spans = (row for row in record.spans if row["name"] == "checkpoint")
    return [row for row in spans if not row.get("unfinished")]
