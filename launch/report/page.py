"""The page: the template filled with what a record says."""

from dataclasses import dataclass
from typing import Any

from jaxdist.core.units import count, duration
from jaxdist.core.words import ORIGINS
from jaxdist.launch.report import beside, charts, findings, learning, mesh, timeline
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
        "find": findings,
        "figures": learning.figures(record),
        "steps_a_point": learning.steps_a_point(len(record.train)),
        "wall_time": charts.wall_time(run),
        "phases": charts.time_by_phase(run),
        "traffic": charts.bytes_by_collective(run),
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
