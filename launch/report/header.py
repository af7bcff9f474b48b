"""The top of the page: facts of a run, and its key figures."""

from collections.abc import Iterator
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
    model = str(record.value("model.name", ""))
    software = [f"{name} {version}" for name, version in record.packages.items()]
    facts = {
        "Result": _result_text(record),
        "Ran": _time_range(record),
        "Model": _join_parts(
            model, run.parameters and pluralize(run.parameters, "parameter")
        ),
        "Data": _join_parts(record.value("data.name", ""), run.shuffle),
        "Machine": _device_text(record),
        "Numbers": _join_parts(
            record.value("precision", ""),
            "seed" in record.values and f"seed {record.value('seed')}",
        ),
        "Software": ", ".join(software),
        "Command": record.command,
    }
    return {name: text or "not recorded" for name, text in facts.items()}


def _device_text(record: RunData) -> str:
    if record.plan is None and not record.summarised:
        return ""
    kind = f" ({record.run.platform})" if record.summarised else ""
    return pluralize(record.run.devices, "device") + kind


def _join_parts(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part)


def _result_text(record: RunData) -> str:
    run = record.run
    if not record.summarised:
        during = next((s["name"] for s in record.spans if s.get("unfinished")), None)
        where = f"; last seen in {during}" if during else ""
        return (
            "no summary: still running, or killed at step "
            f"{format_count(run.steps)}{where}"
        )
    scored = run.accuracy is not None
    score = (
        f", test accuracy {format_percent(run.accuracy or 0.0, 2)}" if scored else ""
    )
    return f"{run.status} at step {format_count(run.steps)}{score}"


def _time_range(record: RunData) -> str:
    """Say from when to when, over every sitting, and how long the last one took."""
    rows = (*record.train, *record.tests)
    times = [row["time"] for row in rows if row.get("time")]
    times += [
        end for s in record.spans for end in (s["start"], s["start"] + s["seconds"])
    ]
    if not times:
        return ""
    wall = f", {format_duration(record.run.wall_s)}" if record.run.wall_s else ""
    start, end = format_utc(min(times)), format_utc(max(times))
    if start[:10] == end[:10]:
        end = end[11:]
    return f"{start} to {end} UTC{wall}"


def format_utc(seconds: float | None) -> str:
    """Write Unix seconds as a date and time in UTC."""
    if seconds is None:
        return "not recorded"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def key_figures(record: RunData) -> Iterator[KeyFigure]:
    """Pick the six key figures."""
    run, missing = record.run, "not recorded"
    yield _accuracy_figure(record)
    if run.step_s:
        median, low, high, unit = step_time_percentiles(run)
        note = f"median; p5 {low}, p95 {high}"
        yield KeyFigure(name="Step time", value=median, unit=unit, note=note)
        each = f"{run.samples_per_s / run.devices:,.0f} a device"
        note = _join_parts(each, _batch_text(record))
        rate = f"{run.samples_per_s:,.0f}"
        yield KeyFigure(name="Throughput", value=rate, unit="samples/s", note=note)
    else:
        yield KeyFigure(name="Step time", note=missing)
        yield KeyFigure(name="Throughput", note=missing)
    note = f"for the compiled step, on each of {pluralize(run.devices, 'device')}"
    yield _key_figure(
        "Memory a device", run.memory_bytes and format_size(run.memory_bytes), note
    )
    note = "from the command to the first finished step"
    yield _key_figure(
        "First step", run.first_step_s and format_duration(run.first_step_s), note
    )
    yield _compute_share_figure(record)


def _accuracy_figure(record: RunData) -> KeyFigure:
    run = record.run
    if run.accuracy is None:
        return KeyFigure(name="Test accuracy", note="not evaluated")
    single = run.answers in (0, run.held_out)
    of = (
        f"{format_count(run.held_out)} samples"
        if single
        else f"{format_count(run.answers)} tokens"
    )
    note = f"{format_count(run.correct)} of {of} held out, each once"
    value, _, unit = format_percent(run.accuracy, 2).partition(" ")
    return KeyFigure(name="Test accuracy", value=value, unit=unit, note=note)


def _compute_share_figure(record: RunData) -> KeyFigure:
    phases = record.run.phases_s
    whole = sum(phases.values())
    if not whole:
        return KeyFigure(name="Time in steps", note="not recorded")
    note = f"of {format_duration(whole)}, the rest is below"
    return _key_figure(
        "Time in steps", format_percent(phases.get("compute", 0.0) / whole), note
    )


def _key_figure(name: str, written: str | float, note: str) -> KeyFigure:
    """Split a written number from its unit; a zero was not measured."""
    if not written:
        return KeyFigure(name=name, note="not recorded")
    value, _, unit = str(written).rpartition(" ")
    return KeyFigure(name=name, value=value, unit=unit, note=note)


def _batch_text(record: RunData) -> str:
    batch = record.value("data.batch")
    return f"global batch {format_count(batch)}" if isinstance(batch, int) else ""
