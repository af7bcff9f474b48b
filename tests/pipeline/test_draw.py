"""Drawings of tables: every work is there once, with or without colours."""

import io
import re
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from jaxdist.core.text.theme import FILLS, SURFACES
from jaxdist.pipeline.draw_svg import draw_svg
from jaxdist.pipeline.draw_text import draw_text
from jaxdist.pipeline.sync_schedule import forward_only, make_sync_schedule

SVG = "{http://www.w3.org/2000/svg}"
TABLES = [
    make_sync_schedule("gpipe", 2, 3),
    make_sync_schedule("1f1b", 4, 12),
    make_sync_schedule("interleaved", 2, 4, chunks=3),
    make_sync_schedule("zb-h1", 3, 5),
    forward_only(3, 2),
]


def works(table):
    return [work for row in table.ticks for work in row if work]


def named(table):
    return table.title


def test_a_drawing_written_out():
    assert draw_text(
        make_sync_schedule("zb-h1", 2, 2), width=80
    ).plain.splitlines() == [
        "stage 0   0 ╱╱╱ 1 [0](0)[1](1)  2 in flight, 2 held",
        "stage 1  ╱╱╱ 0 [0] 1 [1](0)(1)  1 in flight, 2 held",
        "tick      0           4",
    ]


@pytest.mark.parametrize("table", TABLES, ids=named)
def test_every_work_is_drawn_in_its_row(table):
    rows = draw_text(table, width=1000).plain.splitlines()[:-1]
    assert len(rows) == table.devices
    for device, row in enumerate(rows):
        cells = row.removeprefix(table.lane(device)).removesuffix(table.note(device))
        found = re.findall(r"\[\s*\w+\s*\]|\(\s*\w+\s*\)|\w+", cells)
        wanted = [t[device] for t in table.ticks if t[device]]
        assert [re.sub(r"\W", "", cell) for cell in found] == [
            table.label(work) for work in wanted
        ]
        kinds = {"[": "backward", "(": "weights"}
        assert [kinds.get(cell[0], "forward") for cell in found] == [
            work.kind for work in wanted
        ]


@pytest.mark.parametrize("width", [40, 63, 80, 100])
def test_a_drawing_is_as_wide_as_the_terminal_and_counts_what_is_cut(width):
    table = make_sync_schedule("1f1b", 4, 30)
    *rows, numbers = draw_text(table, width=width).plain.splitlines()
    assert max(len(row) for row in rows) <= width
    left = int(re.search(r"(\d+) more ticks$", numbers)[1])
    shown = table.length - left
    assert all(len(row.split("…")[0]) == len("stage 0  ") + 4 * shown for row in rows)


def test_chunks_are_letters():
    table = make_sync_schedule("interleaved", 2, 2, chunks=2)
    assert (
        draw_text(table, width=90)
        .plain.splitlines()[0]
        .startswith("device 0   0a  1a  0b ")
    )


def test_colours_are_those_of_forward_and_backward():
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, color_system="truecolor", width=200)
    out.print(draw_text(make_sync_schedule("1f1b", 2, 2), width=200))
    for name in ("forward", "backward"):
        red, green, blue = bytes.fromhex(FILLS[name].light[1:])
        assert f"48;2;{red};{green};{blue}m" in file.getvalue()


@pytest.mark.parametrize("table", TABLES, ids=named)
def test_a_picture_has_a_cell_for_every_tick_of_every_device(table):
    root = Xml.fromstring(draw_svg(table))
    boxes = [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert len(boxes) == len(works(table))
    told = {box.find(f"{SVG}title").text for box in boxes}
    assert len(told) == len(boxes)
    idle = [r for r in root.findall(f"{SVG}rect") if r.get("fill") == "url(#idle)"]
    key = 1
    assert len(idle) == table.length * table.devices - len(boxes) + key


@pytest.mark.parametrize("table", TABLES, ids=named)
def test_nothing_of_a_picture_lies_outside_or_on_another_cell(table):
    root = Xml.fromstring(draw_svg(table))
    _, _, width, height = map(float, root.get("viewBox").split())
    places = set()
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x + float(box.get("width")) <= width
        assert y + float(box.get("height")) <= height
        places.add((x, y))
    assert len(places) == len(list(root.iter(f"{SVG}rect")))
    for text in root.iter(f"{SVG}text"):
        half = 0.5 if text.get("text-anchor") == "middle" else 1
        letter = 9 if text.get("class") == "title" else 7  # 14 px and 12 px or less
        assert float(text.get("x")) + half * letter * len(text.text) <= width
        assert float(text.get("y")) <= height


def test_a_picture_needs_nothing_else_and_knows_two_papers():
    text = draw_svg(make_sync_schedule("1f1b", 2, 2))
    assert "<script" not in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    light, dark = text.split("prefers-color-scheme: dark")
    for colour in (FILLS["forward"], FILLS["backward"], SURFACES["paper"]):
        assert colour.light in light
        assert colour.dark in dark


def test_a_picture_says_what_it_shows():
    table = make_sync_schedule("zb-h1", 2, 2)
    root = Xml.fromstring(draw_svg(table))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "zb-h1, 2 stages, 2 microbatches"
    assert root.find(f"{SVG}desc").text.startswith("7 ticks; stage 0: 2 in flight")
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[-4:] == ["forward", "backward", "weights", "idle"]
