"""The page: the template filled with what a record says."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.units import count, duration
from jaxdist.core.words import ORIGINS
from jaxdist.launch.report import (
    beside,
    charts,
    findings,
    learning,
    mesh,
    mixing,
    moved,
    replanned,
    scaling,
    sittings,
    timeline,
)
from jaxdist.launch.report.facts import facts, tiles, utc
from jaxdist.launch.report.paper import fill, part
from jaxdist.launch.report.read import Record
from jaxdist.launch.tables import next_commands


@dataclass(frozen=True, kw_only=True)
class Value:
    """A line of the configuration."""

    key: str
    text: str
    by: str
    mark: str


def render(record: Record) -> str:
    """Write the page of a run as one HTML document that asks for nothing."""
    return fill(part("report.html.j2"), _shown(record))


def _shown(record: Record) -> dict[str, Any]:
    plan, run = record.plan, record.run
    return {
        "record": record,
        "run": run,
        "title": plan.title if plan else "plan not recorded",
        "drawing": mesh.draw_mesh(plan) if plan else None,
        "caption": mesh.caption(plan) if plan else "",
        "facts": facts(record),
        "tiles": list(tiles(record)),
        "find": _sentences(record),
        "figures": learning.figures(record),
        "steps_a_point": learning.steps_a_point(len(record.train)),
        "wall_time": charts.wall_time(run),
        "phases": charts.time_by_phase(run),
        "moved": moved.moved(record),
        "changes": replanned.lines(record),
        "scaling": scaling.scaling(record),
        "mixing": mixing.mixing(record),
        "sittings": sittings.sittings(record),
        "beside": beside.beside(record),
        "pipeline": timeline.pipeline(record),
        "saved": findings.saved(record),
        "values": _values(record),
        "origins": [who for who in ORIGINS if who in _setters(record)],
        "setters": _setters(record),
        "utc": utc,
        "count": count,
        "duration": duration,
        "next": _next(record),
    }


def _sentences(record: Record) -> dict[str, Markup]:
    """Compute the sentence over each section."""
    return {
        "learning": findings.learning(record),
        "time": findings.time(record),
        "moved": moved.sentence(record),
        "memory": findings.memory(record),
        "predicted": findings.predicted(record),
        "pipeline": findings.pipeline(record),
        "replanned": replanned.sentence(record),
        "scaling": scaling.sentence(record),
        "mixing": mixing.sentence(record),
        "goodput": sittings.sentence(record),
        "checkpoints": findings.checkpoints(record),
        "configuration": findings.values(record),
    }


def _setters(record: Record) -> list[str]:
    return [row["by"] for row in record.values.values()]


def _values(record: Record) -> list[Value]:
    return [
        Value(
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


def _next(record: Record) -> list[str]:
    """Name commands to try; a run that stopped goes on with its own command."""
    if record.run.status == "stopped":
        return [record.command] if record.command else []
    return next_commands(record.run, record.folder)
