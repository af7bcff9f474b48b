"""The drawing beside a plan's title: its devices as a small grid."""

from typing import Final

from markupsafe import Markup

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.plan import Plan
from jaxdist.launch.report.svg import tag

_CELL: Final = 19
_PITCH: Final = 22
_MAX_DRAWN: Final = 8
_MIN_LABEL_WIDTH: Final = 50
"""Least width of a frame that has room for `stage 0`, not for the number alone."""
_VERTICAL_AXES: Final = (*SPATIAL_AXES, "tensor")


def draw_mesh(plan: Plan) -> Markup:
    """Draw the devices: stages side by side, batch shards across, slices down."""
    # A few of each are enough to see the shape; the caption says what is left out.
    stages = min(plan.mesh.pipe, _MAX_DRAWN)
    columns = min(_batch_shards(plan), _MAX_DRAWN)
    rows = min(plan.mesh.size(*_VERTICAL_AXES), _MAX_DRAWN)
    frame_width, cell = columns * _PITCH + 7, {"width": _CELL, "height": _CELL}
    marks = []
    for stage in range(stages):
        left = stage * (frame_width + 10)
        frame = {"width": frame_width - 1, "height": rows * _PITCH + 7}
        marks.append(tag("rect", class_="gl-f", x=left + 0.5, y=18.5, **frame))
        for column in range(columns):
            for row in range(rows):
                at = {"x": left + 5 + _PITCH * column, "y": 23 + _PITCH * row}
                marks.append(tag("rect", class_="t-backward", **at, **cell))
        name = f"stage {stage}" if frame_width >= _MIN_LABEL_WIDTH else str(stage)
        named = name if plan.mesh.pipe > 1 else ""
        middle = {"x": left + frame_width / 2, "y": 11, "text_anchor": "middle"}
        marks.append(tag("text", named, class_="tick", **middle))

    width, height = stages * (frame_width + 10), rows * _PITCH + 29
    title = f"Mesh of the plan {plan.title}"
    told = (tag("title", title), tag("desc", mesh_caption(plan)))
    # Cells are whole pixels: this drawing is not stretched to the width of the page.
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return tag("svg", *told, *marks, role="img", aria_label=title, **size)


def mesh_caption(plan: Plan) -> str:
    """Say what the directions of the drawing are.

    >>> from jaxdist.core.plan import MeshShape
    >>> mesh_caption(Plan(mesh=MeshShape(data=4, spatial_h=2)))
    'data 4 across, spatial_h 2 down'
    >>> mesh_caption(Plan(mesh=MeshShape(spatial_h=2), spatial_end="block3"))
    'spatial_h 2 down, images whole from block3 on'
    >>> mesh_caption(Plan(mesh=MeshShape(data=2, tensor=2), placement=("data",)))
    'data 2 across, tensor 2 down, data innermost on devices'
    """
    used = [(name, size) for name, size in plan.mesh.items() if size > 1]
    across = [f"{n} {s}" for n, s in used if n not in _VERTICAL_AXES and n != "pipe"]
    down = [f"{n} {s}" for n, s in used if n in _VERTICAL_AXES]
    parts = [f"{' x '.join(across)} across"] if across else []
    parts += [f"{' x '.join(down)} down"] if down else []
    end = plan.spatial_end
    own = ", samples dealt out" if plan.spatial_end_mode == "samples" else ""
    parts += [f"images whole from {end} on{own}"] if end else []
    parts += [f"pipe {plan.mesh.pipe} side by side"] if plan.mesh.pipe > 1 else []
    # Axes that are innermost have their collectives on the links inside a host.
    inner = " x ".join(plan.inside)
    parts += [f"{inner} innermost on devices"] if inner else []
    vertical = plan.mesh.size(*_VERTICAL_AXES)
    cut = max(plan.mesh.pipe, _batch_shards(plan), vertical) > _MAX_DRAWN
    parts += [f"{_MAX_DRAWN} drawn"] if cut else []
    return ", ".join(parts) or "one device"


def _batch_shards(plan: Plan) -> int:
    # Every axis that is neither stages nor slices of a sample shards the batch.
    return plan.mesh.devices // plan.mesh.pipe // plan.mesh.size(*_VERTICAL_AXES)
