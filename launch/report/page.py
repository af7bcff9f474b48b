"""The page: the template filled with what a record says."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.text.formatting import count, duration
from jaxdist.core.text.theme import ORIGINS
from jaxdist.launch.report import (
    captions,
    goodput,
    learning_curves,
    mesh_drawing,
    pipeline_timeline,
    predicted_vs_measured,
    replans,
    scaling_section,
    shuffle_mixing,
    time_and_bytes,
    traffic,
)
from jaxdist.launch.report.header import facts, tiles, utc
from jaxdist.launch.report.html_document import fill, part
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_summary import next_commands


@dataclass(frozen=True, kw_only=True)
class ConfigRow:
    """A line of the configuration."""

    key: str
    text: str
    by: str
    mark: str


def render(record: RunData) -> str:
    """Write the page of a run as one HTML document that asks for nothing."""
    return fill(part("report.html.j2"), _shown(record))


def _shown(record: RunData) -> dict[str, Any]:
    plan, run = record.plan, record.run
    return {
        "record": record,
        "run": run,
        "title": plan.title if plan else "plan not recorded",
        "drawing": mesh_drawing.draw_mesh(plan) if plan else None,
        "caption": mesh_drawing.caption(plan) if plan else "",
        "facts": facts(record),
        "tiles": list(tiles(record)),
        "find": _sentences(record),
        "figures": learning_curves.figures(record),
        "steps_a_point": learning_curves.steps_a_point(len(record.train)),
        "wall_time": time_and_bytes.wall_time(run),
        "phases": time_and_bytes.time_by_phase(run),
        "moved": traffic.moved(record),
        "changes": replans.lines(record),
        "scaling": scaling_section.scaling(record),
        "mixing": shuffle_mixing.mixing(record),
        "sittings": goodput.sittings(record),
        "beside": predicted_vs_measured.beside(record),
        "pipeline": pipeline_timeline.pipeline(record),
        "saved": captions.saved(record),
        "values": _values(record),
        "origins": [who for who in ORIGINS if who in _setters(record)],
        "setters": _setters(record),
        "utc": utc,
        "count": count,
        "duration": duration,
        "next": _next(record),
    }


def _sentences(record: RunData) -> dict[str, Markup]:
    """Compute the sentence over each section."""
    return {
        "learning": captions.learning(record),
        "time": captions.time(record),
        "moved": traffic.sentence(record),
        "memory": captions.memory(record),
        "predicted": captions.predicted(record),
        "pipeline": captions.pipeline(record),
        "replanned": replans.sentence(record),
        "scaling": scaling_section.sentence(record),
        "mixing": shuffle_mixing.sentence(record),
        "goodput": goodput.sentence(record),
        "checkpoints": captions.checkpoints(record),
        "configuration": captions.values(record),
    }


def _setters(record: RunData) -> list[str]:
    return [row["by"] for row in record.values.values()]


def _values(record: RunData) -> list[ConfigRow]:
    return [
        ConfigRow(
            key=key,
            text=_text(row["value"]),
            by=row["by"],
            mark=ORIGINS.get(row["by"], ORIGINS["default"])[0],
        )
        for key, row in record.values.items()
    ]


def _text(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _next(record: RunData) -> list[str]:
    """Name commands to try; a run that stopped goes on with its own command."""
    if record.run.status == "stopped":
        return [record.command] if record.command else []
    return next_commands(record.run, record.folder)
