"""The drawing beside a plan's title: its devices as a small grid."""

from typing import Final

from markupsafe import Markup

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.plan import Plan
from jaxdist.launch.report.svg import join, tag

_CELL: Final = 19
_STEP: Final = 22
_MOST: Final = 8
_NAMED: Final = 50
"""Least width of a frame that has room for `stage 0`, not for the number alone."""
_DOWN: Final = (*SPATIAL_AXES, "tensor")


def draw_mesh(plan: Plan) -> Markup:
    """Draw the devices: stages side by side, batch shards across, slices down."""
    stages = min(plan.mesh.pipe, _MOST)
    width, height = stages * (_frame_width(plan) + 10), _rows(plan) * _STEP + 29
    return tag(
        "svg",
        tag("title", f"Mesh of the plan {plan.title}"),
        tag("desc", caption(plan)),
        join([_stage(plan, stage) for stage in range(stages)]),
        role="img",
        aria_label=f"Mesh of the plan {plan.title}",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
    )


def caption(plan: Plan) -> str:
    """Say what the directions of the drawing are.

    >>> from jaxdist.core.plan import MeshShape
    >>> caption(Plan(mesh=MeshShape(data=4, spatial_h=2)))
    'data 4 across, spatial_h 2 down'
    >>> caption(Plan(mesh=MeshShape(spatial_h=2), spatial_until="block3"))
    'spatial_h 2 down, images whole from block3 on'
    >>> caption(Plan(mesh=MeshShape(data=2, tensor=2), placement=("data",)))
    'data 2 across, tensor 2 down, data innermost on devices'
    """
    used = [(name, size) for name, size in plan.mesh.items() if size > 1]
    across = [f"{n} {s}" for n, s in used if n not in _DOWN and n != "pipe"]
    down = [f"{n} {s}" for n, s in used if n in _DOWN]
    parts = [f"{' x '.join(across)} across"] if across else []
    parts += [f"{' x '.join(down)} down"] if down else []
    end = plan.spatial_until
    own = ", samples dealt out" if plan.spatial_then == "samples" else ""
    parts += [f"images whole from {end} on{own}"] if end else []
    parts += [f"pipe {plan.mesh.pipe} side by side"] if plan.mesh.pipe > 1 else []
    inner = " x ".join(plan.inside)
    parts += [f"{inner} innermost on devices"] if inner else []
    cut = max(plan.mesh.pipe, _all_across(plan), plan.mesh.size(*_DOWN)) > _MOST
    parts += [f"{_MOST} drawn"] if cut else []
    return ", ".join(parts) or "one device"


def _stage(plan: Plan, stage: int) -> Markup:
    left = stage * (_frame_width(plan) + 10)
    middle = left + _frame_width(plan) / 2
    frame = tag(
        "rect",
        class_="gl-f",
        x=left + 0.5,
        y=18.5,
        width=_frame_width(plan) - 1,
        height=_rows(plan) * _STEP + 7,
    )
    cells = [
        tag(
            "rect",
            class_="t-backward",
            x=left + 5 + _STEP * column,
            y=23 + _STEP * row,
            width=_CELL,
            height=_CELL,
        )
        for column in range(_columns(plan))
        for row in range(_rows(plan))
    ]
    name = _name(plan, stage)
    label = tag("text", name, class_="tick", x=middle, y=11, text_anchor="middle")
    return join([frame, *cells, label])


def _name(plan: Plan, stage: int) -> str:
    if plan.mesh.pipe == 1:
        return ""
    return f"stage {stage}" if _frame_width(plan) >= _NAMED else str(stage)


def _all_across(plan: Plan) -> int:
    return plan.mesh.devices // plan.mesh.pipe // plan.mesh.size(*_DOWN)


def _columns(plan: Plan) -> int:
    return min(_all_across(plan), _MOST)


def _rows(plan: Plan) -> int:
    return min(plan.mesh.size(*_DOWN), _MOST)


def _frame_width(plan: Plan) -> int:
    return _columns(plan) * _STEP + 7
