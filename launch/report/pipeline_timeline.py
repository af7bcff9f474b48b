"""The timeline of a pipeline: a lane a device, planned over measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.text.formatting import percent as share
from jaxdist.launch.report.run_record import RunData
from jaxdist.launch.report.svg import percent, picture, tag, tick_text, ticks

LaneWork = Sequence[Mapping[str, Any]]
"""Work of a device, as `compared.json` has it."""
_LANE: Final = 64
_PLANNED: Final = (8, 12)
"""Top and height of a planned lane."""
_MEASURED: Final = (24, 30)
_FILLS: Final = {"forward": "forward", "backward": "backward", "weights": "update"}
_NARROW: Final = 0.018
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


def pipeline(record: RunData) -> PipelineSection | None:
    """Return the timeline of a run that was compared; None where there is none."""
    found = (record.compared or {}).get("pipeline")
    if not found:
        return None
    step = record.compared["step"] if record.compared else {}
    said, took = step["predicted"], step["measured"]
    lanes = list(zip(found["planned"], found["measured"], strict=True))
    names = [_name(planned) for planned, _ in lanes]
    rows = [
        DeviceRow(
            name=name,
            planned=_micro(planned),
            measured=_micro(measured),
            idle_planned=_idle(planned, said),
            idle_measured=_idle(measured, took),
        )
        for name, (planned, measured) in zip(names, lanes, strict=True)
    ]
    return PipelineSection(names=names, svg=_draw(lanes, said, took), rows=rows)


def _name(cells: LaneWork) -> str:
    stages = sorted({cell["stage"] for cell in cells})
    return f"stage {', '.join(map(str, stages))}"


def _micro(cells: LaneWork) -> str:
    """Write the milliseconds of one microbatch."""
    if not cells:
        return "not watched"
    count = len({cell["micro"] for cell in cells})
    return f"{1e3 * _busy(cells) / count:,.2f}"


def _idle(cells: LaneWork, step: float) -> str:
    return share(max(0.0, 1 - _busy(cells) / step)) if cells else "not watched"


def _busy(cells: LaneWork) -> float:
    return float(sum(cell["end"] - cell["start"] for cell in cells))


def _draw(
    lanes: Sequence[tuple[LaneWork, LaneWork]], said: float, took: float
) -> Markup:
    axis = ticks(0.0, 1e3 * max(said, took))
    whole, height = 1e-3 * axis[-1], _LANE * len(lanes)
    marks = [
        tag("line", class_="grid", x1=x, x2=x, y1=0, y2=height)
        for x in (percent(1e-3 * tick / whole) for tick in axis)
    ]
    for number, (planned, measured) in enumerate(lanes):
        marks += [_cell(c, whole, number, _PLANNED, "p") for c in planned]
        for cell in measured:
            marks.append(_cell(cell, whole, number, _MEASURED, "m"))
            marks += _number(cell, whole, number)
    for seconds, name, y in ((said, "planned", -18), (took, "measured", -4)):
        x, label = percent(seconds / whole), f"{name} {1e3 * seconds:,.1f}"
        marks.append(tag("line", class_="rst", x1=x, x2=x, y1=y, y2=height))
        marks.append(tag("text", label, class_="tick", x=x, y=y, text_anchor="end"))
    marks += [
        tag(
            "text",
            tick_text(tick),
            class_="tick",
            x=percent(1e-3 * tick / whole),
            y=height + 14,
            text_anchor="middle" if tick else "start",
        )
        for tick in axis
    ]
    ends = f"{1e3 * said:,.1f} ms planned, {1e3 * took:,.1f} ms measured"
    title = f"Pipeline: a step of {ends}"
    desc = "For each device a hollow lane of planned work over a filled one, measured."
    return picture(title, *marks, height=height + 18, desc=desc)


def _cell(
    cell: Mapping[str, Any], whole: float, lane: int, place: tuple[int, int], kind: str
) -> Markup:
    top, height = place
    took = 1e3 * (cell["end"] - cell["start"])
    name = f"{cell['kind']}, stage {cell['stage']}, microbatch {cell['micro']}"
    return tag(
        "rect",
        tag("title", f"{name}: {took:,.2f} ms"),
        class_=f"{kind} t-{_FILLS[cell['kind']]}",
        x=percent(cell["start"] / whole),
        y=_LANE * lane + top,
        width=percent((cell["end"] - cell["start"]) / whole),
        height=height,
    )


def _number(cell: Mapping[str, Any], whole: float, lane: int) -> list[Markup]:
    if cell["end"] - cell["start"] < _NARROW * whole or cell["kind"] == "weights":
        return []
    middle = (cell["start"] + cell["end"]) / 2 / whole
    y = _LANE * lane + _MEASURED[0] + 19
    return [
        tag(
            "text",
            str(cell["micro"]),
            class_=f"gn in-{cell['kind']}",
            x=percent(middle),
            y=y,
            text_anchor="middle",
        )
    ]
