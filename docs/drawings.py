"""Draws docs/drawings: a mesh, a halo exchange, a Megatron pair, a pipeline, a shuffle,
and predicted beside measured steps.

Each is one SVG file, legible on light and on dark paper.

    python docs/drawings.py
"""

import math
import re
from html import escape
from pathlib import Path

from jaxdist.pipeline import make_sync_schedule
from jaxdist.pipeline.draw_svg import draw_svg

FOLDER = Path(__file__).parent / "drawings"

STYLE = """
text { font: 13px ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif;
       fill: #1f2328; text-anchor: middle; }
.left { text-anchor: start; }
.small { font-size: 12px; fill: #59636e; }
.small.on { fill: #1f2328; }
.device { fill: #eef4fb; stroke: #4a7ab5; }
.group { fill: none; stroke: #8c959f; stroke-dasharray: 5 4; }
.fetched { fill: none; stroke: #b5542b; stroke-dasharray: 4 3; stroke-width: 1.5; }
.line { fill: none; stroke: #6e7781; stroke-width: 1.4; }
.head { fill: #6e7781; }
.moved { fill: none; stroke: #b5542b; stroke-width: 1.6; }
.moved-head { fill: #b5542b; }
.c0 { fill: #a9c8ee; stroke: #4a7ab5; } .c1 { fill: #f3c9a5; stroke: #b5762b; }
.c2 { fill: #b4dcb9; stroke: #3f8a4b; } .c3 { fill: #dcc3ea; stroke: #8357a3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; } .small.on { fill: #e6edf3; }
  .device { fill: #16263a; stroke: #6ca0dc; }
  .group { stroke: #7d8590; }
  .fetched, .moved { stroke: #f0935c; }
  .moved-head { fill: #f0935c; }
  .line { stroke: #9198a1; }
  .head { fill: #9198a1; }
  .c0 { fill: #1f4a7d; stroke: #6ca0dc; } .c1 { fill: #6e431b; stroke: #dc9f5c; }
  .c2 { fill: #235a2d; stroke: #6cc07a; } .c3 { fill: #54306e; stroke: #b98ad9; }
}
"""


def box(x, y, width, height, kind, label=""):
    """A rectangle with a word in its middle."""
    place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    shape = f'<rect class="{kind}" {place} rx="3"/>'
    return shape + (text(x + width / 2, y + height / 2 + 4.5, label) if label else "")


def text(x, y, words, kind=""):
    """Words around a point, or from it on (`left`)."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def arrow(*points, kind="line", both=False):
    """A line through points that ends in a head, or in one at each end."""
    head = {"line": "head", "moved": "moved-head"}[kind]
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    ends = f' marker-end="url(#{head})"' + both * f' marker-start="url(#{head})"'
    return f'<polyline class="{kind}" points="{path}"{ends}/>'


def picture(width, height, title, parts):
    """An SVG document."""
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse">'
        f'<path class="{name}" d="M0,0 L8,4 L0,8 z"/></marker>'
        for name in ("head", "moved-head")
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{heads}</defs>",
            *parts,
            "</svg>\n",
        ]
    )


def mesh():
    """Eight devices as data 4 x spatial_h 2: halos inside, gradients over all."""
    parts = [box(84, 34, 528, 180, "group")]
    for column in range(4):
        x = 100 + 130 * column
        parts.append(text(x + 53, 22, f"data {column}"))
        for row in range(2):
            y = 48 + 92 * row
            parts += [
                box(x, y, 106, 60, "device"),
                text(x + 53, y + 24, f"device {2 * column + row}"),
                text(x + 53, y + 44, ("upper", "lower")[row] + " rows", "small"),
            ]
        parts.append(arrow((x + 30, 110), (x + 30, 138), kind="moved", both=True))
        parts.append(text(x + 38, 128, "halos", "small left"))
    parts += [text(40, 82, "spatial_h 0"), text(40, 174, "spatial_h 1")]
    note = "gradients: one all-reduce over data x spatial_h, all eight devices"
    parts.append(text(348, 234, note, "small"))
    title = "A mesh: data 4 x spatial_h 2 on eight devices"
    return picture(624, 246, title, parts)


def halo():
    """Rows 0 to 15 on two devices, and the row that each fetches of the other."""
    parts, cell = [], 30
    for device, left in enumerate((16, 346)):
        parts.append(text(left + 4.5 * cell, 22, f"device {device}"))
        first = 8 * device - device
        for place in range(9):
            row = first + place
            own = row // 8 == device
            kind = f"c{device}" if own else "fetched"
            parts.append(box(left + cell * place, 34, cell - 2, 40, kind, str(row)))
    # Row 7 of device 0 goes to device 1, row 8 of device 1 to device 0.
    parts += [
        arrow((240, 78), (240, 104), (360, 104), (360, 78), kind="moved"),
        arrow((390, 78), (390, 122), (270, 122), (270, 78), kind="moved"),
        text(315, 144, "one collective-permute each way", "small"),
        text(16, 144, "3 x 3, stride 1", "small left"),
    ]
    title = "A halo exchange: each device fetches a row of its neighbour"
    return picture(632, 156, title, parts)


def megatron():
    """Two layers on two devices, split by columns and then by rows: one sum a pair."""
    parts = [box(10, 72, 64, 56, "device", "x")]
    for device in range(2):
        y, kind = 22 + 96 * device, f"c{device}"
        middle = y + 30
        parts += [
            arrow((76, 100), (96, 100), (96, middle), (124, middle)),
            box(128, y, 112, 60, kind),
            text(184, y + 25, "first layer"),
            text(184, y + 45, f"half {device} of columns", "small on"),
            arrow((242, middle), (268, middle)),
            box(272, y, 76, 60, kind),
            text(310, y + 25, "features"),
            text(310, y + 45, f"half {device}", "small on"),
            arrow((350, middle), (376, middle)),
            box(380, y, 112, 60, kind),
            text(436, y + 25, "last layer"),
            text(436, y + 45, f"half {device} of rows", "small on"),
            arrow((494, middle), (528, middle), (528, 100 + 16 * (device * 2 - 1))),
            text(184, y - 7, f"device {device}", "small"),
        ]
    parts += [
        '<circle class="device" cx="528" cy="100" r="13"/>',
        text(528, 105, "+"),
        arrow((543, 100), (568, 100), kind="moved"),
        box(572, 72, 64, 56, "device", "y"),
        text(560, 200, "all-reduce", "small"),
        arrow((552, 186), (536, 118), kind="moved"),
    ]
    title = "A Megatron pair: between the layers nothing is sent"
    return picture(648, 212, title, parts)


def pipeline():
    """Four stages and eight microbatches under 1F1B, as `jaxdist pipeline draw -o`."""
    return draw_svg(make_sync_schedule("1f1b", devices=4, microbatches=8))


def shuffle():
    """Four hosts of eight samples, before and after a quarter is exchanged."""
    parts, count = [], 8
    came = {0: (1, 3), 1: (2, 0), 2: (3, 1), 3: (0, 2)}
    for row, y in enumerate((34, 124)):
        parts.append(text(12, y + 19, f"epoch {row}", "left"))
        for host in range(4):
            left = 84 + 138 * host
            if not row:
                parts.append(text(left + 60, 22, f"host {host}"))
            for place in range(count):
                home = came[host][place - 6] if row and place >= 6 else host
                parts.append(box(left + 15 * place, y, 13, 28, f"c{home}"))
    for host in range(4):
        for place, home in zip((6, 7), came[host]):
            start = 84 + 138 * home + 15 * (6 if came[host][0] == home else 7) + 6
            end = 84 + 138 * host + 15 * place + 6
            parts.append(arrow((start, 65), (end, 121), kind="moved"))
    note = "Q = 0.25: two of eight samples go, and two come; the others stay"
    parts.append(text(354, 178, note, "small"))
    title = "A partial shuffle: each host exchanges a part Q of its samples an epoch"
    return picture(640, 190, title, parts)


def executed_plans():
    """Return (network, predicted, measured) of each plan of a page's table, in ms."""
    page = (FOLDER.parent / "prediction.md").read_text(encoding="utf-8")
    _, _, behind = page.partition("\n## Executed plans\n")
    found = []
    for line in behind.split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        # The first three rates are of `digits`, the others of VGG-16.
        for place, cell in enumerate(cells[1:7]):
            pair = re.fullmatch(r"(\d+), (\d+)", cell)
            if pair:
                network = "VGG-16" if place >= 3 else "digits"
                found.append((network, int(pair[1]), int(pair[2])))
    return found


def predicted():
    """Each executed plan as a point: predicted step to the right, measured upwards."""
    left, top, size = 64, 14, 300
    least, most = 35, 1500

    def place(time_ms):
        return size * math.log(time_ms / least) / math.log(most / least)

    parts = [box(left, top, size, size, "group")]
    # Lines of equal ratio are parallel on two logarithmic axes.
    for ratio, kind in ((1, "line"), (1.2, "group"), (1 / 1.2, "group")):
        start, end = max(least, least / ratio), min(most, most / ratio)
        ends = [(left + place(x), top + size - place(x * ratio)) for x in (start, end)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    for tick in (50, 100, 200, 500, 1000):
        at = place(tick)
        parts += [
            text(round(left + at), top + size + 17, str(tick), "small"),
            text(left - 20, round(top + size - at + 4), str(tick), "small"),
        ]
    kinds = {"digits": "c0", "VGG-16": "c1"}
    found = executed_plans()
    for network, said, seen in found:
        x, y = left + place(said), top + size - place(seen)
        parts.append(
            f'<circle class="{kinds[network]}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        )
    parts += [
        text(left + size / 2, top + size + 36, "predicted step, ms"),
        text(left + 12, top + 22, "measured step, ms", "left"),
    ]
    right = left + size + 28
    notes = [
        f"{len(found)} plans, executed on four",
        "emulated hosts with links of",
        "100 Mbit, 200 Mbit and 1 Gbit",
    ]
    for row, note in enumerate(notes):
        parts.append(text(right, top + 26 + 19 * row, note, "left"))
    for row, (network, kind) in enumerate(kinds.items()):
        y = top + 106 + 24 * row
        parts += [
            f'<circle class="{kind}" cx="{right + 6}" cy="{y - 4}" r="4"/>',
            text(right + 20, y, f"plans of {network}", "left"),
        ]
    near = sum(1 / 1.2 <= seen / said <= 1.2 for _, said, seen in found)
    legend = "solid: equal", f"dashed: 20 % off; {near} plans lie between"
    for row, note in enumerate(legend):
        parts.append(text(right, top + 160 + 19 * row, note, "left small"))
    title = "Predicted and measured steps of executed plans"
    return picture(620, 362, title, parts)


DRAWINGS = {
    "mesh.svg": mesh,
    "halo.svg": halo,
    "megatron.svg": megatron,
    "pipeline.svg": pipeline,
    "shuffle.svg": shuffle,
    "predicted.svg": predicted,
}


def main():
    """Write all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
