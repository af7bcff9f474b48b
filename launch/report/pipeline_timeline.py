"""The timeline of a pipeline: a lane a device, planned over measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_percent as share
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import (
    format_tick,
    labelled_svg,
    percent_length,
    tag,
    ticks,
)

LaneWork = Sequence[Mapping[str, Any]]
"""Work of a device, as `compared.json` has it."""
_LANE_HEIGHT: Final = 64
_PREDICTED_SPAN: Final = (8, 12)
"""Top and height of a planned lane."""
_MEASURED_SPAN: Final = (24, 30)
_WORK_FILLS: Final = {"forward": "forward", "backward": "backward", "weights": "update"}
_MIN_LABEL_SHARE: Final = 0.018
"""Share of the width below which a microbatch's number is left out."""


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """What the table says of a device."""

    name: str
    planned: str
    measured: str
    idle_planned: str
    idle_measured: str


@dataclass(frozen=True, kw_only=True)
class PipelineSection:
    """What the section shows."""

    names: Sequence[str]
    svg: Markup
    rows: Sequence[DeviceRow]


def pipeline_section(record: RunData) -> PipelineSection | None:
    """Return the timeline of a run that was compared; None where there is none."""
    found = (record.compared or {}).get("pipeline")
    if not found:
        return None
    step = record.compared["step"] if record.compared else {}
    said, took = step["predicted"], step["measured"]
    lanes = list(zip(found["planned"], found["measured"], strict=True))
    names = [_lane_name(planned) for planned, _ in lanes]
    rows = [
        DeviceRow(
            name=name,
            planned=_microbatch_ms(planned),
            measured=_microbatch_ms(measured),
            idle_planned=_idle_share(planned, said),
            idle_measured=_idle_share(measured, took),
        )
        for name, (planned, measured) in zip(names, lanes, strict=True)
    ]
    return PipelineSection(
        names=names, svg=_draw_timeline(lanes, said, took), rows=rows
    )


def _lane_name(cells: LaneWork) -> str:
    stages = sorted({cell["stage"] for cell in cells})
    return f"stage {', '.join(map(str, stages))}"


def _microbatch_ms(cells: LaneWork) -> str:
    """Write the milliseconds of one microbatch."""
    if not cells:
        return "not watched"
    count = len({cell["micro"] for cell in cells})
    return f"{1e3 * _busy_s(cells) / count:,.2f}"


def _idle_share(cells: LaneWork, step: float) -> str:
    return share(max(0.0, 1 - _busy_s(cells) / step)) if cells else "not watched"


def _busy_s(cells: LaneWork) -> float:
    return float(sum(cell["end"] - cell["start"] for cell in cells))


def _draw_timeline(
    lanes: Sequence[tuple[LaneWork, LaneWork]], said: float, took: float
) -> Markup:
    axis = ticks(0.0, 1e3 * max(said, took))
    whole, height = 1e-3 * axis[-1], _LANE_HEIGHT * len(lanes)
    marks = [
        tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height)
        for x in (percent_length(1e-3 * tick / whole) for tick in axis)
    ]
    for number, (planned, measured) in enumerate(lanes):
        marks += [_work_rect(c, whole, number, _PREDICTED_SPAN, "p") for c in planned]
        for cell in measured:
            marks.append(_work_rect(cell, whole, number, _MEASURED_SPAN, "m"))
            marks += _microbatch_label(cell, whole, number)
    for seconds, name, y in ((said, "planned", -18), (took, "measured", -4)):
        x, label = percent_length(seconds / whole), f"{name} {1e3 * seconds:,.1f}"
        marks.append(tag("line", class_="rst", x1=x, x2=x, y1=y, y2=height))
        marks.append(tag("text", label, class_="tick", x=x, y=y, text_anchor="end"))
    marks += [
        tag(
            "text",
            format_tick(tick),
            class_="tick",
            x=percent_length(1e-3 * tick / whole),
            y=height + 14,
            text_anchor="middle" if tick else "start",
        )
        for tick in axis
    ]
    ends = f"{1e3 * said:,.1f} ms planned, {1e3 * took:,.1f} ms measured"
    title = f"Pipeline: a step of {ends}"
    desc = "For each device a hollow lane of planned work over a filled one, measured."
    return labelled_svg(title, *marks, height=height + 18, desc=desc)


def _work_rect(
    cell: Mapping[str, Any], whole: float, lane: int, place: tuple[int, int], kind: str
) -> Markup:
    top, height = place
    took = 1e3 * (cell["end"] - cell["start"])
    name = f"{cell['kind']}, stage {cell['stage']}, microbatch {cell['micro']}"
    return tag(
        "rect",
        tag("title", f"{name}: {took:,.2f} ms"),
        class_=f"{kind} t-{_WORK_FILLS[cell['kind']]}",
        x=percent_length(cell["start"] / whole),
        y=_LANE_HEIGHT * lane + top,
        width=percent_length((cell["end"] - cell["start"]) / whole),
        height=height,
    )


def _microbatch_label(cell: Mapping[str, Any], whole: float, lane: int) -> list[Markup]:
    if (
        cell["end"] - cell["start"] < _MIN_LABEL_SHARE * whole
        or cell["kind"] == "weights"
    ):
        return []
    middle = (cell["start"] + cell["end"]) / 2 / whole
    y = _LANE_HEIGHT * lane + _MEASURED_SPAN[0] + 19
    return [
        tag(
            "text",
            str(cell["micro"]),
            class_=f"gn in-{cell['kind']}",
            x=percent_length(middle),
            y=y,
            text_anchor="middle",
        )
    ]
