"""A table drawn as SVG: one file that is legible on light and on dark paper.

It holds its own styles, loads nothing and runs no script. Every cell says in its
tooltip what it is; the picture says in words what it shows.
"""

from typing import Final
from xml.etree import ElementTree as Xml

from jaxdist.core.text.theme import FILLS, SURFACES, TEXT_ON, Colour
from jaxdist.pipeline.draw_text import (
    TICK_LABEL_INTERVAL,
    DrawableSchedule,
    max_label_length,
)
from jaxdist.pipeline.schedule_base import WorkItem

_ROW_HEIGHT: Final = 24
_ROW_GAP: Final = 4
_TOP_MARGIN: Final = 40
_CHAR_WIDTH: Final = 7
_LEGEND_WIDTH: Final = 300
"""Pixels: of a row, between rows, above the first, of a letter, and of the key."""

_COLOURS: Final = {
    **{name: FILLS[name] for name in ("forward", "backward", "wait")},
    **{name: SURFACES[name] for name in ("paper", "ink", "muted")},
    **{name: TEXT_ON[name] for name in ("on-forward", "on-backward")},
}

_CSS: Final = """
.pipeline text { font: 10px system-ui, sans-serif; fill: var(--ink);
  font-variant-numeric: tabular-nums; }
.pipeline .title { font-size: 14px; font-weight: 600; }
.pipeline .lane { font-size: 12px; }
.pipeline .muted { fill: var(--muted); }
.pipeline .paper { fill: var(--paper); }
.pipeline rect.forward { fill: var(--forward); }
.pipeline rect.backward { fill: var(--backward); }
.pipeline rect.weights { fill: var(--paper); stroke: var(--backward); }
.pipeline text.forward { fill: var(--on-forward); }
.pipeline text.backward { fill: var(--on-backward); }
.pipeline .hatch { stroke: var(--wait); }
"""


def draw_svg(schedule: DrawableSchedule) -> str:
    """Return a table as an SVG document.

    Args:
        schedule: what to draw.
    """
    ticks, devices = len(schedule.ticks), len(schedule.ticks[0])
    # SVG has no layout: widths are estimated from the number of letters.
    cell = 8 + _CHAR_WIDTH * max_label_length(schedule)
    lanes = [schedule.lane(device) for device in range(devices)]
    notes = [schedule.note(device) for device in range(devices)]
    left = 16 + _CHAR_WIDTH * max(map(len, lanes))
    wide = left + ticks * cell + 24 + _CHAR_WIDTH * max(map(len, notes))
    width = max(wide, left + _LEGEND_WIDTH, 16 + 9 * len(schedule.title))
    height = _TOP_MARGIN + devices * _ROW_HEIGHT + 56
    root = _document(schedule, width, height)
    _text(root, schedule.title, 8, 22, "title")
    for device in range(devices):
        y = _TOP_MARGIN + device * _ROW_HEIGHT
        _text(root, lanes[device], 8, y + 14, "lane")
        for tick, row in enumerate(schedule.ticks):
            _cell(root, schedule, row[device], left + tick * cell, y, cell, tick)
        _text(root, notes[device], left + ticks * cell + 8, y + 14, "lane muted")
    below = _TOP_MARGIN + devices * _ROW_HEIGHT + 12
    for tick in range(0, ticks, TICK_LABEL_INTERVAL):
        _text(root, str(tick), left + tick * cell + 2, below, "muted")
    _legend(root, schedule, left, below + 16)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _document(table: DrawableSchedule, width: int, height: int) -> Xml.Element:
    """Return an empty picture with its words, styles and paper."""
    size = {"width": str(width), "height": str(height)}
    about = {"class": "pipeline", "role": "img", "viewBox": f"0 0 {width} {height}"}
    # `role="img"` with `title` and `desc` lets screen readers tell what the picture
    # shows.
    root = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **about, **size})
    Xml.SubElement(root, "title").text = table.title
    devices = range(len(table.ticks[0]))
    rows = [f"{table.lane(d)}: {table.note(d)}" for d in devices if table.note(d)]
    told = "; ".join((f"{len(table.ticks)} ticks", *rows))
    Xml.SubElement(root, "desc").text = told
    Xml.SubElement(root, "style").text = _style()
    tile = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse"}
    defs = Xml.SubElement(root, "defs")
    # Idle ticks are hatched, so that the drawing also holds without colours.
    pattern = Xml.SubElement(defs, "pattern", {"id": "idle", **tile})
    Xml.SubElement(pattern, "path", {"class": "hatch", "d": "M0 6 L6 0"})
    Xml.SubElement(root, "rect", {"class": "paper", **size})
    return root


def _style() -> str:
    def named(theme: str) -> str:
        def value(colour: Colour) -> str:
            return colour.dark if theme == "dark" else colour.light

        return "; ".join(f"--{name}: {value(c)}" for name, c in _COLOURS.items())

    # Custom properties, so that one rule swaps all colours on a dark screen; `screen`
    # leaves prints light.
    dark = f".pipeline {{ {named('dark')} }}"
    return (
        f"\n.pipeline {{ {named('light')} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ {dark} }}{_CSS}"
    )


def _cell(
    root: Xml.Element,
    table: DrawableSchedule,
    work: WorkItem | None,
    x: int,
    y: int,
    width: int,
    tick: int,
) -> None:
    at = {
        "x": str(x + 1),
        "y": str(y),
        "width": str(width - 2),
        "height": str(_ROW_HEIGHT - _ROW_GAP),
    }
    if work is None:
        Xml.SubElement(root, "rect", {**at, "fill": "url(#idle)"})
        return
    box = Xml.SubElement(root, "rect", {**at, "class": work.kind})
    told = (
        f"{work.kind} of stage {work.stage}, microbatch {work.microbatch}, tick {tick}"
    )
    # A browser shows the `title` of an element as its tooltip.
    Xml.SubElement(box, "title").text = told
    middle = x + width / 2
    _text(root, table.label(work), middle, y + 14, work.kind, anchor="middle")


def _legend(root: Xml.Element, table: DrawableSchedule, x: int, y: int) -> None:
    """Say what the fills mean, of those that the picture has."""
    kinds = {work.kind for row in table.ticks for work in row if work}
    names = [kind for kind in ("forward", "backward", "weights") if kind in kinds]
    for name in (*names, "idle"):
        look = {"fill": "url(#idle)"} if name == "idle" else {"class": name}
        at = {"x": str(x), "y": str(y), "width": "12", "height": "12"}
        Xml.SubElement(root, "rect", {**at, **look})
        _text(root, name, x + 18, y + 10, "lane")
        x += 32 + _CHAR_WIDTH * len(name)


def _text(
    root: Xml.Element, says: str, x: float, y: float, kind: str, anchor: str = "start"
) -> None:
    if not says:
        return
    place = {"x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor, "class": kind}
    Xml.SubElement(root, "text", place).text = says
