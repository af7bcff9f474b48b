"""A table drawn for the terminal: a row a device, a cell a tick.

A forward is its microbatch, a backward has it in brackets, a gradient of weights in
parentheses, so the drawing holds without colours too.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from jaxdist.core.text.theme import FILLS, TEXT_ON
from jaxdist.pipeline.schedule_base import Ticks, WorkItem, WorkKind

if TYPE_CHECKING:
    from rich.text import Text


class DrawableSchedule(Protocol):
    """What can be drawn: ticks, and the names of what is in them."""

    @property
    def title(self) -> str:
        """What is drawn, in a line."""

    @property
    def ticks(self) -> Ticks:
        """Rows are ticks, columns devices."""

    def lane(self, device: int) -> str:
        """Name the row of a device."""

    def label(self, work: WorkItem) -> str:
        """Name a work in its row."""

    def note(self, device: int) -> str:
        """Say what a device holds."""


# A drawing without colours must tell the kinds apart, too.
CELL_BRACKETS: Final[Mapping[WorkKind, tuple[str, str]]] = MappingProxyType(
    {"forward": (" ", " "), "backward": ("[", "]"), "weights": ("(", ")")}
)
"""What stands on either side of a work's name."""

TICK_LABEL_INTERVAL: Final = 4
"""Ticks from one number below the drawing to the next."""

_STYLES: Final[Mapping[WorkKind, str]] = MappingProxyType(
    {
        "forward": f"{TEXT_ON['on-forward'].light} on {FILLS['forward'].light}",
        "backward": f"{TEXT_ON['on-backward'].light} on {FILLS['backward'].light}",
        "weights": "",
    }
)


def draw_text(
    schedule: DrawableSchedule, *, width: int, idle: str = "╱", ellipsis: str = "…"
) -> "Text":
    """Return a table as text for a rich console.

    Args:
        schedule: what to draw.
        width: columns; what does not fit is cut at a tick, and counted below.
        idle: sign of a tick without work, one column.
        ellipsis: sign at a cut.
    """
    # Imported late: what draws nothing need not load `rich`.
    from rich.text import Text

    devices = range(len(schedule.ticks[0]))
    start = max(len(schedule.lane(device)) for device in devices) + 2
    end = max(len(schedule.note(device)) for device in devices) + 2 + len(ellipsis)
    size = 2 + max_label_length(schedule)
    # Cut at a whole tick; at least one is shown, however narrow the terminal is.
    rows = schedule.ticks[: max((width - start - end) // size, 1)]
    left = len(schedule.ticks) - len(rows)
    drawn = Text(no_wrap=True)
    for device in devices:
        drawn.append(schedule.lane(device).ljust(start))
        for row in rows:
            drawn.append(*_cell(schedule, row[device], size, idle))
        drawn.append(
            f"{ellipsis if left else ''}  {schedule.note(device)}".rstrip() + "\n"
        )
    numbers = (
        f" {t}".ljust(size * TICK_LABEL_INTERVAL)
        for t in range(0, len(rows), TICK_LABEL_INTERVAL)
    )
    rest = f"  {left:,} more ticks" if left else ""
    drawn.append("tick".ljust(start) + "".join(numbers).rstrip() + rest)
    return drawn


def max_label_length(table: DrawableSchedule) -> int:
    """Return the length of the longest name of a work."""
    return max(len(table.label(w)) for row in table.ticks for w in row if w)


def _cell(
    table: DrawableSchedule, work: WorkItem | None, size: int, idle: str
) -> tuple[str, str]:
    """Return a cell and its style."""
    if work is None:
        return idle * size, "bright_black"
    left, right = CELL_BRACKETS[work.kind]
    name = table.label(work).center(size - 2)
    return f"{left}{name}{right}", _STYLES[work.kind]
