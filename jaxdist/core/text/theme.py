"""Colours of terms, the same in the report, plots and the terminal.

 Cool colours: a device computes.
Warm colours: bytes move on a link, one hue an axis. Green and olive: storage.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
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
        "#2870E1", "#71C9F4", "forward pass; activations in memory; evaluation"
    ),
    "backward": Colour(
        "#1E4964",
        "#2C68EC",
        "backward pass; useful steps; the one series of a plain plot",
    ),
    "update": Colour("#091420", "#DCEAEF", "optimizer update"),
    "data": Colour(
        "#9D4812",
        "#E54015",
        "traffic along data, fsdp and expert; communication buffers",
    ),
    "spatial": Colour(
        "#B88D0F", "#E9C01E", "traffic along the spatial and context axes"
    ),
    "tensor": Colour("#E466B7", "#D86BA7", "traffic along tensor"),
    "pipe": Colour("#6C2093", "#8C60BC", "traffic along pipe"),
    "input": Colour("#0EA964", "#1A9760", "input wait, reading, exchange"),
    "checkpoint": Colour("#49482B", "#AFB55E", "checkpoint stall, writing"),
    "wait": Colour("#7F8890", "#8A939C", "held but not used; always hatched"),
}
"""Marks that carry a meaning, in the order of terms."""

SURFACES: Final = {
    "paper": Colour("#FFFFFF", "#14171A", "page"),
    "panel": Colour("#F5F6F4", "#1B1F23", "the row of this run"),
    "ink": Colour("#1B2026", "#E7EAED", "text, capacity lines"),
    "muted": Colour("#56606A", "#A2ABB4", "units, notes, ticks"),
    "line": Colour("#D8DCDF", "#2F353B", "grid, row rules"),
    "axis": Colour("#8B949C", "#6F7982", "axes, table head rule"),
    "link": Colour("#1B5FA8", "#8BC1F7", "links, focus ring"),
}
"""Paper, text and lines."""

TEXT_ON: Final = {
    "on-forward": Colour("#FFFFFF", "#14171A", "on forward"),
    "on-backward": Colour("#FFFFFF", "#FFFFFF", "on backward"),
    "on-data": Colour("#FFFFFF", "#14171A", "on data"),
    "on-spatial": Colour("#1B2026", "#14171A", "on spatial"),
    "on-tensor": Colour("#1B2026", "#14171A", "on tensor"),
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
