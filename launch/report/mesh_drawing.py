"""The drawing beside a plan's title: its devices as a small grid."""

from typing import Final

from markupsafe import Markup

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.plan import Plan
from jaxdist.launch.report.svg import join, tag

_CELL: Final = 19
_PITCH: Final = 22
_MAX_DRAWN: Final = 8
_MIN_LABEL_WIDTH: Final = 50
"""Least width of a frame that has room for `stage 0`, not for the number alone."""
_VERTICAL_AXES: Final = (*SPATIAL_AXES, "tensor")


def draw_mesh(plan: Plan) -> Markup:
    """Draw the devices: stages side by side, batch shards across, slices down."""
    stages = min(plan.mesh.pipe, _MAX_DRAWN)
    width, height = stages * (_frame_width(plan) + 10), _rows(plan) * _PITCH + 29
    return tag(
        "svg",
        tag("title", f"Mesh of the plan {plan.title}"),
        tag("desc", mesh_caption(plan)),
        join([_draw_stage(plan, stage) for stage in range(stages)]),
        role="img",
        aria_label=f"Mesh of the plan {plan.title}",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def mesh_caption(plan: Plan) -> str:
    """Say what the directions of the drawing are.

    >>> from jaxdist.core.plan import MeshShape
    >>> mesh_caption(Plan(mesh=MeshShape(data=4, spatial_h=2)))
    'data 4 across, spatial_h 2 down'
    >>> mesh_caption(Plan(mesh=MeshShape(spatial_h=2), spatial_until="block3"))
    'spatial_h 2 down, images whole from block3 on'
    >>> mesh_caption(Plan(mesh=MeshShape(data=2, tensor=2), placement=("data",)))
    'data 2 across, tensor 2 down, data innermost on devices'
    """
    used = [(name, size) for name, size in plan.mesh.items() if size > 1]
    across = [f"{n} {s}" for n, s in used if n not in _VERTICAL_AXES and n != "pipe"]
    down = [f"{n} {s}" for n, s in used if n in _VERTICAL_AXES]
    parts = [f"{' x '.join(across)} across"] if across else []
    parts += [f"{' x '.join(down)} down"] if down else []
    end = plan.spatial_until
    own = ", samples dealt out" if plan.spatial_then == "samples" else ""
    parts += [f"images whole from {end} on{own}"] if end else []
    parts += [f"pipe {plan.mesh.pipe} side by side"] if plan.mesh.pipe > 1 else []
    inner = " x ".join(plan.inside)
    parts += [f"{inner} innermost on devices"] if inner else []
    cut = (
        max(plan.mesh.pipe, _batch_shards(plan), plan.mesh.size(*_VERTICAL_AXES))
        > _MAX_DRAWN
    )
    parts += [f"{_MAX_DRAWN} drawn"] if cut else []
    return ", ".join(parts) or "one device"


def _draw_stage(plan: Plan, stage: int) -> Markup:
    left = stage * (_frame_width(plan) + 10)
    middle = left + _frame_width(plan) / 2
    frame = tag(
        "rect",
        class_="gl-f",
        x=left + 0.5,
        y=18.5,
        width=_frame_width(plan) - 1,
        height=_rows(plan) * _PITCH + 7,
    )
    cells = [
        tag(
            "rect",
            class_="t-backward",
            x=left + 5 + _PITCH * column,
            y=23 + _PITCH * row,
            width=_CELL,
            height=_CELL,
        )
        for column in range(_columns(plan))
        for row in range(_rows(plan))
    ]
    name = _stage_label(plan, stage)
    label = tag("text", name, class_="tick", x=middle, y=11, text_anchor="middle")
    return join([frame, *cells, label])


def _stage_label(plan: Plan, stage: int) -> str:
    if plan.mesh.pipe == 1:
        return ""
    return f"stage {stage}" if _frame_width(plan) >= _MIN_LABEL_WIDTH else str(stage)


def _batch_shards(plan: Plan) -> int:
    return plan.mesh.devices // plan.mesh.pipe // plan.mesh.size(*_VERTICAL_AXES)


def _columns(plan: Plan) -> int:
    return min(_batch_shards(plan), _MAX_DRAWN)


def _rows(plan: Plan) -> int:
    return min(plan.mesh.size(*_VERTICAL_AXES), _MAX_DRAWN)


def _frame_width(plan: Plan) -> int:
    return _columns(plan) * _PITCH + 7
