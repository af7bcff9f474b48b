"""The page: the template filled with what a record says."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxdist.core.text.formatting import format_count, format_duration
from jaxdist.core.text.theme import SETTING_SOURCES
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
from jaxdist.launch.report.header import format_utc, header_facts, key_figures
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.terminal.run_summary import suggest_commands


@dataclass(frozen=True, kw_only=True)
class ConfigRow:
    """A line of the configuration."""

    key: str
    text: str
    by: str
    mark: str


def render_report(record: RunData) -> str:
    """Write the page of a run as one HTML document that asks for nothing."""
    return render_template(read_resource("report.html.j2"), _template_context(record))


def _template_context(record: RunData) -> dict[str, Any]:
    plan, run = record.plan, record.run
    return {
        "record": record,
        "run": run,
        "title": plan.title if plan else "plan not recorded",
        "drawing": mesh_drawing.draw_mesh(plan) if plan else None,
        "caption": mesh_drawing.mesh_caption(plan) if plan else "",
        "facts": header_facts(record),
        "tiles": list(key_figures(record)),
        "find": _captions(record),
        "figures": learning_curves.learning_figures(record),
        "steps_a_point": learning_curves.steps_per_point(len(record.train)),
        "wall_time": time_and_bytes.wall_time_bar(run),
        "phases": time_and_bytes.phase_chart(run),
        "moved": traffic.traffic_section(record),
        "changes": replans.replan_rows(record),
        "scaling": scaling_section.scaling_section(record),
        "mixing": shuffle_mixing.mixing_section(record),
        "sittings": goodput.goodput_section(record),
        "beside": predicted_vs_measured.prediction_section(record),
        "pipeline": pipeline_timeline.pipeline_section(record),
        "saved": captions.finished_checkpoints(record),
        "values": _config_rows(record),
        "origins": [who for who in SETTING_SOURCES if who in _setting_sources(record)],
        "setters": _setting_sources(record),
        "utc": format_utc,
        "count": format_count,
        "duration": format_duration,
        "next": _next_commands(record),
    }


def _captions(record: RunData) -> dict[str, Markup]:
    """Compute the sentence over each section."""
    return {
        "learning": captions.learning_caption(record),
        "time": captions.time_caption(record),
        "moved": traffic.traffic_caption(record),
        "memory": captions.memory_caption(record),
        "predicted": captions.prediction_caption(record),
        "pipeline": captions.pipeline_caption(record),
        "replanned": replans.replan_caption(record),
        "scaling": scaling_section.scaling_caption(record),
        "mixing": shuffle_mixing.mixing_caption(record),
        "goodput": goodput.goodput_caption(record),
        "checkpoints": captions.checkpoint_caption(record),
        "configuration": captions.config_caption(record),
    }


def _setting_sources(record: RunData) -> list[str]:
    return [row["by"] for row in record.values.values()]


def _config_rows(record: RunData) -> list[ConfigRow]:
    return [
        ConfigRow(
            key=key,
            text=_format_setting(row["value"]),
            by=row["by"],
            mark=SETTING_SOURCES.get(row["by"], SETTING_SOURCES["default"])[0],
        )
        for key, row in record.values.items()
    ]


def _format_setting(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, list):
        return ", ".join(map(_format_setting, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _next_commands(record: RunData) -> list[str]:
    """Name commands to try; a run that stopped goes on with its own command."""
    if record.run.status == "stopped":
        return [record.command] if record.command else []
    return suggest_commands(record.run, record.folder)
