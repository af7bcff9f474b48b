"""The page: the template filled with what the files of a run say."""

from pathlib import Path
from typing import Any

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
    traffic,
)
from jaxdist.launch.report.header import format_utc, header_facts, key_figures
from jaxdist.launch.report.html_document import read_resource, render_template
from jaxdist.launch.report.run_record import read_run_data
from jaxdist.launch.run_folder.folder import RunFolder, write_atomic
from jaxdist.launch.terminal.run_summary import suggest_commands


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, from whatever files the run left there.

    Args:
        folder: folder of the run.

    Returns:
        The report's path.

    Raises:
        BadInput: the folder does not exist.
    """
    record = read_run_data(folder)
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
    # A run that was stopped is continued by its own command, typed again.
    commands = suggest_commands(run, record.folder)
    if run.status == "stopped":
        commands = [record.command] if record.command else []
    # A caption is there for every section, also where the run left nothing to draw:
    # then it says why, or which command measures it.
    captions_by_section = {
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
    wall_time, phases = goodput.wall_time_charts(run)
    # The names are those of the template, which refuses a page that lacks one.
    context = {
        "record": record,
        "run": run,
        "title": plan.title if plan else "plan not recorded",
        "drawing": mesh_drawing.draw_mesh(plan) if plan else None,
        "caption": mesh_drawing.mesh_caption(plan) if plan else "",
        "facts": header_facts(record),
        "tiles": key_figures(record),
        "find": captions_by_section,
        "figures": learning_curves.learning_figures(record),
        "steps_a_point": learning_curves.steps_per_point(len(record.train)),
        "wall_time": wall_time,
        "phases": phases,
        "moved": traffic.traffic_section(record),
        "changes": replans.replan_rows(record),
        "scaling": scaling_section.scaling_section(record),
        "mixing": shuffle_mixing.mixing_section(record),
        "sittings": goodput.goodput_section(record),
        "beside": predicted_vs_measured.prediction_section(record),
        "pipeline": pipeline_timeline.pipeline_section(record),
        "saved": captions.finished_checkpoints(record),
        "values": values,
        "origins": [source for source in SETTING_SOURCES if source in setters],
        "setters": setters,
        "utc": format_utc,
        "count": format_count,
        "duration": format_duration,
        "next": commands,
    }
    report = RunFolder(folder).report
    write_atomic(report, render_template(read_resource("report.html.j2"), context))
    return report


def _format_setting(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, list):
        return ", ".join(map(_format_setting, value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
