"""The timeline of a pipeline: a lane a device, planned over measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.report.charts import (
    grid_lines,
    labelled_svg,
    percent_length,
    tag,
    tick_labels,
    ticks,
)
from jaxdist.launch.report.run_record import RunData

LaneWork = Sequence[Mapping[str, Any]]
"""Work of a device, as `compared.json` has it."""
_LANE_HEIGHT: Final = 64
_SPANS: Final = ((8, 12), (24, 30))
"""Top and height of a planned and of a measured lane, pixels."""
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
    if record.compared is None or not found:
        return None
    step = record.compared["step"]
    lanes = list(zip(found["planned"], found["measured"], strict=True))
    rows = []
    for planned, measured in lanes:
        stages = sorted({cell["stage"] for cell in planned})
        told = []
        for cells, whole in (
            (planned, step["predicted"]),
            (measured, step["measured"]),
        ):
            # Profiled were the devices of one process, and none of this place.
            if not cells:
                told.append(("not watched", "not watched"))
                continue
            # A device of several stages computes a microbatch once in each of them.
            busy = float(sum(cell["end"] - cell["start"] for cell in cells))
            count = len({cell["micro"] for cell in cells})
            idle = format_percent(max(0.0, 1 - busy / whole))
            told.append((f"{1e3 * busy / count:,.2f}", idle))
        row = DeviceRow(
            name=f"stage {', '.join(map(str, stages))}",
            planned=told[0][0],
            measured=told[1][0],
            idle_planned=told[0][1],
            idle_measured=told[1][1],
        )
        rows.append(row)
    drawn = _draw_timeline(lanes, step["predicted"], step["measured"])
    return PipelineSection(names=[row.name for row in rows], svg=drawn, rows=rows)


def _draw_timeline(
    lanes: Sequence[tuple[LaneWork, LaneWork]], predicted: float, measured: float
) -> Markup:
    """Draw the work of each device, by the clock of a step of so many seconds."""
    axis = ticks(0.0, 1e3 * max(predicted, measured))
    whole, height = 1e-3 * axis[-1], _LANE_HEIGHT * len(lanes)
    marks = grid_lines(axis, height)
    for number, lane in enumerate(lanes):
        for cells, (top, tall), tone in zip(lane, _SPANS, ("p", "m")):
            y = _LANE_HEIGHT * number + top
            for cell in cells:
                kind, took = cell["kind"], cell["end"] - cell["start"]
                name = f"{kind}, stage {cell['stage']}, microbatch {cell['micro']}"
                rect = tag(
                    "rect",
                    tag("title", f"{name}: {1e3 * took:,.2f} ms"),
                    class_=f"{tone} t-{_WORK_FILLS[kind]}",
                    x=percent_length(cell["start"] / whole),
                    y=y,
                    width=percent_length(took / whole),
                    height=tall,
                )
                marks.append(rect)
                # Planned lanes are too low for numbers. Weight gradients fill idle time
                # in any order, so theirs would say nothing.
                narrow = took < _MIN_LABEL_SHARE * whole
                if tone == "p" or narrow or kind == "weights":
                    continue
                middle = percent_length((cell["start"] + cell["end"]) / 2 / whole)
                at = {"x": middle, "y": y + 19, "text_anchor": "middle"}
                marks.append(
                    tag("text", str(cell["micro"]), class_=f"gn in-{kind}", **at)
                )
    # The ends of the step stand one above the other: they may be close together.
    for seconds, name, y in ((predicted, "planned", -18), (measured, "measured", -4)):
        x, said = percent_length(seconds / whole), f"{name} {1e3 * seconds:,.1f}"
        marks.append(tag("line", class_="rst", x1=x, x2=x, y1=y, y2=height))
        marks.append(tag("text", said, class_="tick", x=x, y=y, text_anchor="end"))
    marks += tick_labels(axis, height + 14)
    ends = f"{1e3 * predicted:,.1f} ms planned, {1e3 * measured:,.1f} ms measured"
    title = f"Pipeline: a step of {ends}"
    desc = "For each device a hollow lane of planned work over a filled one, measured."
    return labelled_svg(title, *marks, height=height + 18, desc=desc)
