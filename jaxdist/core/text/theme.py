"""Words and colours: what a term is called and how it is drawn, in every room.

The report, plots and the terminal read them here. Cool colours: a device computes.
Warm colours: bytes move on a link, one hue an axis. Green and olive: storage.
"""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.axes import AXES, SPATIAL_AXES


@dataclass(frozen=True, kw_only=True)
class Colour:
    """One meaning in the two themes, as `#RRGGBB`; never one derived from the other."""

    light: str
    """On white paper."""
    dark: str
    """On dark paper."""
    meaning: str
    """What is drawn in it."""


FILLS: Final = {
    "forward": Colour(
        light="#2870E1",
        dark="#71C9F4",
        meaning="forward pass; activations in memory; evaluation",
    ),
    "backward": Colour(
        light="#1E4964",
        dark="#2C68EC",
        meaning="backward pass; useful steps; the one series of a plain plot",
    ),
    "update": Colour(light="#091420", dark="#DCEAEF", meaning="optimizer update"),
    "data": Colour(
        light="#9D4812",
        dark="#E54015",
        meaning="traffic along data and fsdp; communication buffers",
    ),
    "spatial": Colour(
        light="#B88D0F", dark="#E9C01E", meaning="traffic along the spatial axes"
    ),
    "tensor": Colour(light="#E466B7", dark="#D86BA7", meaning="traffic along tensor"),
    "pipe": Colour(light="#6C2093", dark="#8C60BC", meaning="traffic along pipe"),
    "input": Colour(
        light="#0EA964", dark="#1A9760", meaning="input wait, reading, exchange"
    ),
    "checkpoint": Colour(
        light="#49482B", dark="#AFB55E", meaning="checkpoint stall, writing"
    ),
    "wait": Colour(
        light="#7F8890", dark="#8A939C", meaning="held but not used; always hatched"
    ),
}
"""Marks that carry a meaning, in the order of terms."""

SURFACES: Final = {
    "paper": Colour(light="#FFFFFF", dark="#14171A", meaning="page"),
    "panel": Colour(light="#F5F6F4", dark="#1B1F23", meaning="the row of this run"),
    "ink": Colour(light="#1B2026", dark="#E7EAED", meaning="text, capacity lines"),
    "muted": Colour(light="#56606A", dark="#A2ABB4", meaning="units, notes, ticks"),
    "line": Colour(light="#D8DCDF", dark="#2F353B", meaning="grid, row rules"),
    "axis": Colour(light="#8B949C", dark="#6F7982", meaning="axes, table head rule"),
    "link": Colour(light="#1B5FA8", dark="#8BC1F7", meaning="links, focus ring"),
}
"""Paper, text and lines."""

TEXT_ON: Final = {
    "on-forward": Colour(light="#FFFFFF", dark="#14171A", meaning="on forward"),
    "on-backward": Colour(light="#FFFFFF", dark="#FFFFFF", meaning="on backward"),
    "on-data": Colour(light="#FFFFFF", dark="#14171A", meaning="on data"),
    "on-spatial": Colour(light="#1B2026", dark="#14171A", meaning="on spatial"),
    "on-tensor": Colour(light="#1B2026", dark="#14171A", meaning="on tensor"),
}
"""Text that stands inside a fill."""

PHASE_FILLS: Final = {
    "compute": "backward",
    "compile": "wait",
    "evaluation": "forward",
    "input": "input",
    "checkpoint": "checkpoint",
    "other": "wait",
}
"""How the phases of a run (`jaxdist.core.run_record.PHASES`) are drawn."""

SETTING_SOURCES: Final = {
    "default": ("·", "."),
    "experiment": ("○", "o"),
    "command line": ("●", "*"),
}
"""Who set a value, weakest first, with the mark in UTF-8 and in ASCII."""


def collective_fill(label: str) -> str:
    """Name the fill of a traffic term `collective, axes`: the hue of its first axis.

    A sum named by what it sums (`all-reduce, loss`) runs with the gradients and has
    their hue.

    >>> collective_fill("halo, spatial_h")
    'spatial'
    >>> collective_fill("all-reduce, data x spatial_h")
    'data'
    """
    along = label.rpartition(", ")[2].split(" x ")[0].split(" ")[0]
    if along in SPATIAL_AXES:
        return "spatial"
    return along if along in AXES and along in FILLS else "data"
