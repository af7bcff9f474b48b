"""The console: how what is printed looks on this terminal."""

import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.validation import json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxdist.core.errors import BadInput
    from jaxdist.launch.config.resolve import SettingSource

MAX_WIDTH: Final = 100
"""Columns that are used at most, and where the output is not a terminal."""

THEME: Final = {
    "title": "bold",
    "plan": "bold",
    "muted": "bright_black",
    "number": "default",
    "this": "bold",
    "forward": "#2870E1",
    "backward": "#4A86A8",
    "update": "default",
    "data": "#D2691E",
    "spatial": "#C79A1A",
    "tensor": "#E466B7",
    "pipe": "#A566C7",
    "input": "#12A968",
    "checkpoint": "#8E8B4A",
    "wait": "bright_black",
    "error": "bold",
    "rule": "bold",
    "cmd": "bold",
    "miss": "bold underline",
}
"""Styles by the name of what they show. Colour is never the only sign of anything."""


@dataclass(frozen=True, kw_only=True)
class Glyphs:
    """The signs of tables and bars in one character set."""

    measured_bar: str = "█"
    """A measured bar, a whole cell."""
    partial_bars: str = "▏▎▍▌▋▊▉"
    """Parts of a measured bar's last cell; empty where whole cells must do."""
    predicted_bar: str = "░"
    """A predicted bar."""
    idle: str = "╱"
    """Idle time of a device."""
    ellipsis: str = "…"
    """The rest of a text that is cut."""
    selected: str = "▸"
    """The row that is selected."""
    default: str = "·"
    """A value that is a default."""
    experiment: str = "○"
    """A value that the experiment set; a predicted point."""
    command_line: str = "●"
    """A value from the command line; a measured point."""

    def source_glyph(self, source: "SettingSource") -> str:
        """Return the sign for where a value was set."""
        named = {"default": self.default, "experiment": self.experiment}
        return named.get(source, self.command_line)


ASCII_GLYPHS: Final = Glyphs(
    measured_bar="#",
    partial_bars="",
    predicted_bar="-",
    idle=".",
    ellipsis="...",
    selected=">",
    default=".",
    experiment="o",
    command_line="*",
)
"""The signs where the encoding is not UTF-8."""


def console(*, error: bool = False) -> "Console":
    """Return a console on standard output, or on standard error.

    Rich itself leaves colours out where NO_COLOR is set or no terminal is there.
    """
    # Rich is imported where it is used: commands that answer in JSON start without it.
    from rich.console import Console
    from rich.theme import Theme

    # Names of runs and plans hold brackets: none of what is printed is markup.
    made = Console(theme=Theme(THEME), stderr=error, highlight=False, markup=False)
    made.width = min(made.width, MAX_WIDTH) if made.is_terminal else MAX_WIDTH
    return made


def console_glyphs(out: "Console") -> Glyphs:
    """Return the signs that this console can show."""
    # Elsewhere a sign outside of the encoding would end the command with an error.
    return Glyphs() if out.encoding.lower().startswith("utf") else ASCII_GLYPHS


def make_table(*columns: str, right: tuple[str, ...] = ()) -> "Table":
    """Return an empty table as all of them look: a rule below the head, no frame.

    Args:
        columns: heads, left to right.
        right: the heads of columns of numbers.
    """
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="title"
    )
    for name in columns:
        # A key or a path that is cut cannot be typed, so it folds instead.
        made.add_column(
            name, justify="right" if name in right else "left", overflow="fold"
        )
    return made


def print_table(out: "Console", rows: "Table") -> None:
    """Print a table where all of them stand: two columns in, a blank line below."""
    from rich.padding import Padding

    out.print(Padding(rows, (0, 0, 1, 2), expand=False))


def print_json(tree: Any) -> None:
    """Print one JSON object on standard output."""
    # Rich would wrap long lines, and a wrapped string is not JSON.
    sys.stdout.write(json_text(tree, indent=2, ascii_only=False) + "\n")


def print_error(error: "BadInput") -> None:
    """Print what was wrong on standard error, every mistake a block of its own."""
    # A terminal breaks long lines anywhere; a file and a pipe keep them whole.
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    for index, one in enumerate(getattr(error, "each", (error,))):
        # Errors of several settings are found together and told together.
        text = f"error: {one!s}"
        text = text if width is None else wrap_error(text, width)
        sys.stderr.write("\n" * bool(index) + f"{text}\n")


_ERROR_INDENT: Final = 11
"""Columns in front of a rule, its values and its remedy."""


def wrap_error(text: str, width: int) -> str:
    """Wrap the lines of an error between words, and not inside of a command.

    A command is what stands in backticks, or begins with `jaxdist` in a remedy: longer
    than a line, it is left to the terminal, so that it is copied whole.

    >>> print(wrap_error("error: no run a\\n  rule     one two `jaxdist runs`", 24))
    error: no run a
      rule     one two
               `jaxdist runs`
    """
    in_backticks, command, word = r"`[^`]*`\S*", r"jaxdist .*$", r"\S+"
    lines = []
    is_remedy = False
    for number, line in enumerate(text.split("\n")):
        # The lines of a remedy after its first begin with blanks alone.
        is_remedy = line.startswith("  remedy ") or (is_remedy and line[:3].isspace())
        kinds = (in_backticks, *[command] * is_remedy, word)
        indent = len("error: ") if number == 0 else _ERROR_INDENT
        made, column = line[:indent], indent
        for part in re.findall("|".join(kinds), line[indent:]):
            if column > indent and column + 1 + len(part) > width:
                made, column = f"{made}\n{' ' * indent}", indent
            gap = " " * (column > indent)
            made, column = f"{made}{gap}{part}", column + len(gap) + len(part)
        lines.append(made)
    return "\n".join(lines)


def print_next_commands(out: "Console", *commands: str) -> None:
    """End an answer with at most three commands to try next."""
    for row, command in enumerate(commands[:3]):
        start = "try" if row == 0 else ""
        # Soft wrapping leaves the break to the terminal: a command that is copied is
        # whole.
        out.print(f"  {start:8} {command}", soft_wrap=True)
