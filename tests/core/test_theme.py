"""The palette can be told apart, by everybody, on both papers."""

import itertools
import math

import pytest

from jaxdist.core.axes import AXES
from jaxdist.core.run_record import PHASES
from jaxdist.core.text.theme import (
    FILLS,
    PHASE_FILLS,
    SURFACES,
    TEXT_ON,
)
from jaxdist.launch.report.charts import collective_fill

THEMES = ("light", "dark")

# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
WHITE = (0.95047, 1.0, 1.08883)


def linear(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(rgb):
    xyz = [x / w for x, w in zip(times(TO_XYZ, rgb), WHITE, strict=True)]
    x, y, z = (
        v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in xyz
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour, sight):
    return lab([min(1, max(0, c)) for c in times(SIGHTS[sight], linear(colour))])


def contrast(one, other):
    bright, dim = sorted(
        (times(TO_XYZ[1:2], linear(c))[0] for c in (one, other)), reverse=True
    )
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_solid_fills_differ_under_every_sight(theme, sight):
    # `wait` is left out: it is never solid, its hatch tells it apart.
    solid = {n: getattr(c, theme) for n, c in FILLS.items() if n != "wait"}
    distances = {
        (a, b): math.dist(seen(solid[a], sight), seen(solid[b], sight))
        for a, b in itertools.combinations(solid, 2)
    }
    assert {pair: d for pair, d in distances.items() if d < 20} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_every_fill_stands_out_from_paper(theme):
    paper = getattr(SURFACES["paper"], theme)
    ratios = {n: contrast(getattr(c, theme), paper) for n, c in FILLS.items()}
    assert {name: r for name, r in ratios.items() if r < 3} == {}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("surface", ["paper", "panel"])
@pytest.mark.parametrize("text", ["ink", "muted", "link"])
def test_text_is_readable_on_every_surface(theme, surface, text):
    pair = (getattr(SURFACES[name], theme) for name in (text, surface))
    assert contrast(*pair) >= 5.9


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", TEXT_ON)
def test_text_inside_a_fill_is_readable(theme, name):
    fill = FILLS[name.removeprefix("on-")]
    assert contrast(getattr(TEXT_ON[name], theme), getattr(fill, theme)) >= 4.3


def test_every_phase_and_every_axis_has_a_fill():
    assert tuple(PHASE_FILLS) == PHASES
    assert set(PHASE_FILLS.values()) <= set(FILLS)
    assert {collective_fill(f"all-reduce, {axis}") for axis in AXES} <= set(FILLS)


@pytest.mark.parametrize(
    ("label", "fill"),
    [
        ("all-reduce, fsdp", "data"),
        ("halo, spatial_d", "spatial"),
        ("all-gather, tensor", "tensor"),
        ("send, pipe", "pipe"),
        ("all-reduce, loss", "data"),
        ("all-reduce", "data"),
    ],
)
def test_a_collective_is_drawn_in_the_hue_of_its_axis(label, fill):
    assert collective_fill(label) == fill
