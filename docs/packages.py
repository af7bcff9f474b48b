"""Draws packages.svg: the packages of jaxdist, in the order of their imports.

Rows are the layers of import-linter in pyproject.toml, highest first. Arrows are the
imports that the source files have; one that follows from others is left out.

    python docs/packages.py
"""

import ast
import itertools
import tomllib
from collections import defaultdict
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = Path(__file__).with_suffix(".svg")

COLUMN, ROW, EDGE = 138, 76, 14  # pixels
BOX, HEIGHT = 112, 34
CHIP_ROW, CHIP, TITLE = 30, 22, 30
SWEEPS = 20  # at most; the places of packages settle in a few

STYLE = """
text { font: 13px ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif;
       fill: #1f2328; text-anchor: middle; }
.small { font-size: 12px; }
.box { fill: #eef4fb; stroke: #4a7ab5; }
.chip { fill: #fff; stroke: #b6c4d4; }
.arrow { fill: none; stroke: #6e7781; stroke-width: 1.3; }
.head { fill: #6e7781; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .box { fill: #16263a; stroke: #6ca0dc; }
  .chip { fill: #0d1117; stroke: #3d4d5f; }
  .arrow { stroke: #9198a1; }
  .head { fill: #9198a1; }
}
"""


def layers_by_package():
    """{package: its layers, highest first} of each contract between packages."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = {}
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        layers = [
            [name.strip(" ()") for name in layer.split("|")]
            for layer in contract["layers"]
        ]
        names = itertools.chain(*layers)
        if all((folder(name) / "__init__.py").is_file() for name in names):
            parent, _, _ = layers[0][0].rpartition(".")
            found[parent] = layers
    return found


def folder(package):
    """The folder of a package; four of them are links inside jaxdist/."""
    return ROOT.joinpath(*package.split(".")).resolve()


def imported_modules(path):
    """Full names that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(packages):
    """{package: the other packages that its files import}."""
    found = {package: set() for package in packages}
    for package in packages:
        for path in sorted(folder(package).rglob("*.py")):
            for module in imported_modules(path):
                for other in packages:
                    if f"{module}.".startswith(f"{other}.") and other != package:
                        found[package].add(other)
    return found


def needed_arrows(layers, imports):
    """The imports without those that follow from others, as (from, to)."""
    place = {name: row for row, layer in enumerate(layers) for name in layer}
    below = {}
    for name in itertools.chain(*reversed(layers)):
        upward = [other for other in imports[name] if place[other] <= place[name]]
        if upward:
            raise ValueError(f"{name} imports {upward[0]}, which is not below it")
        below[name] = imports[name].union(*(below[other] for other in imports[name]))
    return [
        (name, other)
        for layer in layers
        for name in layer
        for other in sorted(imports[name], key=lambda one: (place[one], one))
        if not any(other in below[between] for between in imports[name])
    ]


def with_bends(layers, arrows):
    """Rows and pieces of arrows, each piece from a row to the next.

    A bend is where arrows to a package pass through a row between, all in one place
    unless the package is as wide as the picture.
    """
    place = {name: row for row, layer in enumerate(layers) for name in layer}
    rows, pieces = [list(layer) for layer in layers], []
    for name, target in arrows:
        last = name
        for row in range(place[name] + 1, place[target]):
            bend = (name if target in layers[-1] else "", target, row)
            if bend not in rows[row]:
                rows[row].append(bend)
            pieces.append((last, bend))
            last = bend
        pieces.append((last, target))
    return rows, list(dict.fromkeys(pieces))


def columns(rows, pieces):
    """{package or bend: column}, so that few pieces cross and most go straight down.

    A row that one package fills has no column: pieces meet it where they come from.
    """
    beside = defaultdict(list)
    for upper, lower in pieces:
        beside[upper].append(lower)
        beside[lower].append(upper)
    count = max(map(len, rows))
    row_of = {one: row for row, names in enumerate(rows) for one in names}
    found = {
        one: count - len(names) + place
        for names in rows
        for place, one in enumerate(names)
    }
    wide = {names[0] for names in (rows[0], rows[-1])}

    def cost(names, places):
        """Crossings, and how far pieces lean."""
        lines = [
            (row_of[other] > row_of[one], place, found[other])
            for one, place in zip(names, places)
            for other in beside[one]
            if other not in wide
        ]
        crossed = sum(
            down == also and (a - c) * (b - d) < 0
            for (down, a, b), (also, c, d) in itertools.combinations(lines, 2)
        )
        return 3 * crossed + sum(abs(a - b) ** 1.5 for _, a, b in lines)

    for _ in range(SWEEPS):
        before = dict(found)
        for names in (*rows[1:-1], *rows[-2:0:-1]):
            ways = itertools.permutations(range(count), len(names))
            found.update(zip(names, min(ways, key=lambda way: cost(names, way))))
        if found == before:
            break
    return {one: place for one, place in found.items() if one not in wide}


def draw():
    """The picture, as SVG."""
    contracts = layers_by_package()
    layers = contracts["jaxdist"]
    imports = imports_of(list(itertools.chain(*layers)))
    rows, pieces = with_bends(layers, needed_arrows(layers, imports))
    column = columns(rows, pieces)
    full = max(map(len, rows)) * COLUMN + 2 * EDGE
    inner = contracts["jaxdist.launch"]
    top = TITLE + CHIP_ROW * len(inner) + 6  # of the box of the highest package
    ends = {one: middle(column[one]) for one in column}
    edges = {}
    for row, names in enumerate(rows):
        y = EDGE + top + 42 + (row - 1) * ROW if row else EDGE
        edges |= dict.fromkeys(names, (y, y + (HEIGHT if row else top)))

    shapes = [line for piece in pieces for line in arrow(*piece, ends, edges)]
    for name in (one for names in rows for one in names if isinstance(one, str)):
        upper, lower = edges[name]
        x = ends.get(name, full / 2)
        width = BOX if name in ends else full - 2 * EDGE
        shapes += box("box", name, x, upper, width, lower - upper)
    for row, names in enumerate(inner):
        y = EDGE + TITLE + row * CHIP_ROW
        for place, name in enumerate(names):
            x = full / 2 + (place - (len(names) - 1) / 2) * COLUMN
            shapes += box("chip", name, x, y, BOX, CHIP)
    height = edges[rows[-1][0]][1] + EDGE
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" '
            f'height="{height}" viewBox="0 0 {full} {height}" role="img">',
            "<title>The packages of jaxdist: each imports only those below it</title>",
            f"<style>{STYLE}</style>",
            *shapes,
            "</svg>\n",
        )
    )


def middle(column):
    return EDGE + column * COLUMN + COLUMN // 2


def arrow(upper, lower, ends, edges):
    """A piece of an arrow; bends are tuples, and have no head."""
    x0 = ends.get(upper, ends.get(lower))
    x1 = ends.get(lower, x0)
    y0, y1 = edges[upper][1], edges[lower][0]
    if isinstance(upper, tuple):  # straight through the row of the bend
        yield f'<path class="arrow" d="M{x0} {edges[upper][0]}V{y0}"/>'
    half, stop = (y0 + y1) / 2, y1 - 6 * isinstance(lower, str)
    curve = f"M{x0} {y0}C{x0} {half:g} {x1} {half:g} {x1} {stop}"
    yield f'<path class="arrow" d="{curve}"/>'
    if isinstance(lower, str):
        yield f'<path class="head" d="M{x1} {y1}l-4 -7h8z"/>'


def box(kind, package, x, y, width, height):
    """A package as a rounded box; what it is for shows under the pointer."""
    *_, name = package.split(".")
    tree = ast.parse((folder(package) / "__init__.py").read_text(encoding="utf-8"))
    about = escape(ast.get_docstring(tree).splitlines()[0])
    line = y + min(height, HEIGHT) / 2 + 4.5
    size = ' class="small"' * (kind == "chip")
    yield f"<g><title>{package}: {about}</title>"
    yield (
        f'<rect class="{kind}" x="{x - width / 2:g}" y="{y}" width="{width}" '
        f'height="{height}" rx="6"/>'
    )
    yield f'<text{size} x="{x:g}" y="{line:g}">{name}</text></g>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
