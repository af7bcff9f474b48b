"""The page: the template filled with what a record says."""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from jaxdist.core.units import count, duration
from jaxdist.core.words import FILLS, ORIGINS, SURFACES, TEXT_ON
from jaxdist.launch.report import charts, findings, learning, mesh
from jaxdist.launch.report.facts import facts, tiles, utc
from jaxdist.launch.report.read import Record
from jaxdist.launch.tables import next_commands

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|h|min|m?s|[kMGT]?B|samples/s|UTC)(?!\w))")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A line of the configuration."""

    key: str
    text: str
    by: str
    mark: str


def render(record: Record) -> str:
    """Write the page of a run as one HTML document that asks for nothing."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _palette() + _part("style.css"), _part("sort.js")
    environment.filters["tight"] = tight
    page = environment.from_string(_part("report.html.j2"))
    return page.render(
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        **_shown(record),
    )


def tight(text: str | Markup) -> Markup:
    """Keep numbers and their units on one line.

    >>> tight("median 36.4 ms, < 5 %") == "median 36.4&nbsp;ms, &lt; 5&nbsp;%"
    True
    """
    return Markup(_UNIT.sub("&nbsp;", str(escape(text))))


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
        "piped": plan is not None and plan.mesh.pipe > 1,
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


def _palette() -> str:
    """Write the palette as CSS variables; paper is always light."""
    colours = FILLS | SURFACES | TEXT_ON
    light = "".join(f"--{name}: {c.light}; " for name, c in colours.items())
    dark = "".join(f"--{name}: {c.dark}; " for name, c in colours.items())
    when = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {light}}}\n{when} {{ :root {{ {dark}}} }}\n"


def _policy(style: str, script: str) -> str:
    """Allow this style and this script and nothing else: the page asks for nothing."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; "
        f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    sha = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(sha).decode()}"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
