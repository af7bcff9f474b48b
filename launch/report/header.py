"""The top of the page: facts of a run, and its key figures."""

from dataclasses import dataclass
from datetime import UTC, datetime

from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_header import pluralize
from jaxdist.launch.terminal.run_summary import step_time_percentiles


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
    else:
        # A phase without an end is what the process was in when it was last heard of.
        during = next((s["name"] for s in record.spans if s.get("unfinished")), None)
        result = f"no summary: still running, or killed at step {run.steps:,}"
        result += f"; last seen in {during}" if during else ""

    # From when to when is over all sittings, the wall time that of the last one.
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
            model, run.parameters and pluralize(run.parameters, "parameter")
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
        single = run.answers in (0, run.held_out)
        count, noun = (run.held_out, "samples") if single else (run.answers, "tokens")
        note = f"{run.correct:,} of {count:,} {noun} held out, each once"
        accuracy = (format_percent(run.accuracy, 2), note)

    step, rate = ("", ""), ("", "")
    if run.step_s:
        median, low, high, unit = step_time_percentiles(run)
        step = (f"{median} {unit}", f"median; p5 {low}, p95 {high}")
        batch = record.value("data.batch")
        # The rate of a device compares runs on different numbers of them.
        each = f"{run.samples_per_s / run.devices:,.0f} a device"
        whole = f"global batch {batch:,}" if isinstance(batch, int) else ""
        rate = (f"{run.samples_per_s:,.0f} samples/s", _join_parts(each, whole))

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
