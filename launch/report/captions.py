"""The sentence over each chart, computed from the run: good, bad or missing."""

import math

from markupsafe import Markup

from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.report.learning_curves import first_nonfinite_step, training_loss
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.run_folder.jsonl import JsonRow
from jaxdist.launch.terminal.run_header import pluralize
from jaxdist.launch.terminal.run_summary import phases_by_size
from jaxdist.pipeline.plan_schedule import plan_schedule


def learning_caption(record: RunData) -> Markup:
    """Say what was reached, or what kept the run from it."""
    broken = first_nonfinite_step(record)
    if broken is not None:
        text = "Training loss is not a number from <b>step {}</b> on; it is not drawn."
        return Markup(text).format(format_count(broken))
    loss = training_loss(record)
    if not loss:
        return Markup("No step was recorded.")
    went = _loss_text(loss[0][1], loss[-1][1])
    scored = [row for row in record.tests if row.get("accuracy") is not None]
    if not scored:
        return Markup("The run was not evaluated; {}.").format(went)
    return _accuracy_text(scored) + Markup("; {}.").format(went)


def time_caption(record: RunData) -> Markup:
    """Say which share of the wall time went into steps, and what took the rest."""
    phases = phases_by_size(record.run)
    whole = sum(seconds for _, seconds in phases)
    if not whole:
        return Markup("Time by phase was not recorded.")
    shares = {name: seconds / whole for name, seconds in phases}
    steps = shares.pop("compute", 0.0)
    if not steps:
        return Markup("No step was finished in {}.").format(format_duration(whole))
    shares.pop("other", None)
    first = next(iter(shares), None)
    if first is not None and shares[first] > steps:
        text = "<b>{} took {}</b> of {}, more than the steps ({})."
        found = Markup(text).format(
            first.capitalize(),
            format_percent(shares[first]),
            format_duration(whole),
            format_percent(steps),
        )
    else:
        text = "Steps took <b>{}</b> of {}"
        found = Markup(text).format(format_percent(steps), format_duration(whole))
        rest = (
            f"; {first} is next with {format_percent(shares[first])}" if first else ""
        )
        found += rest + "."
    return found + _input_wait_text(shares.get("input", 0.0), steps)


def memory_caption(record: RunData) -> Markup:
    """Say what the step needs on a device."""
    if not record.run.memory_bytes:
        return Markup("Not measured: the run has no summary.")
    text = "The compiled step needs <b>{}</b> on each of {}."
    devices = pluralize(record.run.devices, "device")
    return Markup(text).format(format_size(record.run.memory_bytes), devices)


def prediction_caption(record: RunData) -> Markup:
    """Say how well the step was predicted, or how to have it compared."""
    found = record.compared
    if not found:
        text = "Not compared: <code>jaxdist compare {} --cluster NAME</code>."
        return Markup(text).format(record.run.name)
    step, inside = found["step"], "inside" if found["inside_interval"] else "outside"
    text = (
        "The step took <b>{}</b>, predicted <b>{}</b> on {}: {} accurate, {} the "
        "interval of {} to {}."
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
    """Say what the pipeline of a plan is, and how much of it nobody works."""
    plan = record.plan
    if plan is None or plan.stages == 1:
        return Markup("No pipeline in this plan.")
    micro = record.value("optim.accumulate")
    if not isinstance(micro, int):
        return Markup("{} stages; their microbatches were not recorded.").format(
            plan.stages
        )
    table = plan_schedule(plan, micro)
    text = "{}, {} stages, {}: {} ticks, <b>{}</b> of them idle as planned."
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
    """Say what is kept and how often the run went on from it."""
    kept = finished_checkpoints(record)
    if not kept and record.run.checkpoint is None:
        return Markup("No checkpoint was written.")
    newest = max([record.run.checkpoint or 0, *(row.get("step") or 0 for row in kept)])
    took = sum(row["seconds"] for row in kept)
    text = Markup("{} held the run up for {}; the newest is of <b>step {}</b>. ")
    found = text.format(
        pluralize(len(kept), "checkpoint"), format_duration(took), format_count(newest)
    )
    return found + _resume_text(record)


def config_caption(record: RunData) -> Markup:
    """Say how many values there are and who set them."""
    if not record.values:
        return Markup("No <code>config.lock.json</code> could be read.")
    total = pluralize(len(record.values), "value")
    return Markup("{}: {}.").format(total, ", ".join(_source_counts(record)))


def finished_checkpoints(record: RunData) -> list[JsonRow]:
    """Return the checkpoints that were finished, a row each."""
    spans = (row for row in record.spans if row["name"] == "checkpoint")
    return [row for row in spans if not row.get("unfinished")]


def _loss_text(first: float, last: float) -> Markup:
    went = "fell" if last < first else "rose" if last > first else "stayed"
    if went == "stayed":
        return Markup("training loss stayed at {:.3f}").format(last)
    return Markup("training loss {} from {:.3f} to <b>{:.3f}</b>").format(
        went, first, last
    )


def _accuracy_text(scored: list[JsonRow]) -> Markup:
    """Tell the last accuracy, and the best one where the last is clearly worse."""
    last, best = scored[-1], max(scored, key=lambda row: row["accuracy"])
    share, top = last["accuracy"], best["accuracy"]
    samples = last.get("samples") or 1
    # Two standard errors of a share counted over that many samples.
    noise = 2 * math.sqrt(max(top * (1 - top), 1e-12) / samples)
    epochs = round(last.get("epoch", len(scored)), 2)
    where = pluralize(epochs, "epoch") if epochs else pluralize(last["step"], "step")
    if top - share > noise:
        text = "Test accuracy ended at <b>{}</b>, below its best of {} at step {}"
        return Markup(text).format(
            format_percent(share, 2), format_percent(top, 2), format_count(best["step"])
        )
    return Markup("Test accuracy reached <b>{}</b> after {}").format(
        format_percent(share, 2), where
    )


def _input_wait_text(wait: float, steps: float) -> str:
    share = wait / (wait + steps)
    if share < 0.05:
        return ""
    return f" Steps waited for input {format_percent(share)} of their time."


def _resume_text(record: RunData) -> Markup:
    again = sum(row["again"] for row in record.resumes)
    if record.resumes:
        times = pluralize(len(record.resumes), "time")
        text = "Resumed {}; {} done again."
        were = "was" if again == 1 else "were"
        return Markup(text).format(times, f"{pluralize(again, 'step')} {were}")
    if record.run.resumed_at is not None:
        at = format_count(record.run.resumed_at)
        return Markup("Resumed at step {}; no step was done again.").format(at)
    return Markup("Never resumed.")


def _source_counts(record: RunData) -> list[str]:
    by = [row["by"] for row in record.values.values()]
    places = {
        "default": "by default",
        "experiment": "by the experiment",
        "command line": "on the command line",
    }
    return [f"{by.count(who)} {place}" for who, place in places.items() if who in by]
