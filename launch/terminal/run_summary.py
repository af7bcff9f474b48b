"""The block a person sees after training: where the time and the bytes went."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxdist.core.run_record import PHASES, Run
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.core.text.theme import PHASE_FILLS
from jaxdist.launch.terminal.run_header import pluralize, wrap_hanging

_BAR_WIDTH: Final = 20
_TABLE_WIDTH: Final = 54
_PARTIAL_BARS: Final = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, kw_only=True)
class TerminalRunSummary:
    """The record of a run, as the block printed at its end.

    The tables of time and of bytes stand side by side where they fit.
    """

    run: Run
    """What happened."""
    folder: Path
    """Folder of the run; the report is in it."""
    next_commands: Sequence[str]
    """Commands to try next."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        run, width = self.run, options.max_width
        yield wrap_hanging(outcome_line(run), 10, width)

        times = _phase_table(run, width, options.ascii_only)
        moved = []
        # The largest first: it is what a better plan would reduce.
        terms = sorted(run.bytes_by_collective.items(), key=lambda term: -term[1])
        if terms:
            longest = max(len(term) for term, _ in terms)
            moved.append(Text("Bytes a step and device", "title"))
            moved += [Text(f"  {t:{longest}}  {format_size(n):>7}") for t, n in terms]
        if run.memory_bytes:
            moved.append(Text("Memory a device", "title"))
            moved.append(Text(f"  compiled step  {format_size(run.memory_bytes)}"))
        room = width - 2 - _TABLE_WIDTH - 2
        tables = [table for table in (times, moved) if table]
        if len(tables) == 2 and max(line.cell_len for line in moved) <= room:
            pairs = list(zip_longest(times, moved, fillvalue=Text()))
            gaps = [Text(" " * (_TABLE_WIDTH + 2 - one.cell_len)) for one, _ in pairs]
            rows = [one + gap + other for (one, other), gap in zip(pairs, gaps)]
            tables = [rows]
        for table in tables:
            yield Text()
            for row in table:
                line = Text("  ") + row
                line.rstrip()
                # What does not fit is left out: a wrapped row would read as two.
                line.no_wrap, line.overflow = True, "crop"
                yield line

        if run.step_s:
            median, low, high, unit = step_time_percentiles(run)
            rate = f"\n  {run.samples_per_s:,.0f} samples/s"
            yield Text(f"{rate}, step {median} {unit} (p5 {low}, p95 {high})")
        yield Text(f"\n  report   {self.folder / 'report.html'}", overflow="ignore")
        for number, command in enumerate(self.next_commands):
            name = "try" if number == 0 else ""
            yield Text.assemble(f"  {name:8} ", (command, "cmd"), overflow="ignore")


def run_summary(
    run: Run, folder: Path, commands: Sequence[str] | None = None
) -> TerminalRunSummary:
    """Make the block that ends a training.

    Args:
        run: what happened.
        folder: folder of the run.
        commands: commands to try next, at most three; the usual ones if not given.
    """
    chosen = suggest_commands(run, folder) if commands is None else commands
    return TerminalRunSummary(run=run, folder=folder, next_commands=tuple(chosen)[:3])


def suggest_commands(run: Run, folder: Path) -> list[str]:
    """Name what to type next: resume a run that stopped, or use what it made."""
    if run.status == "stopped":
        # The name is what finds the folder of the run, with its checkpoints.
        name = quote(f"run.name={run.name}")
        return [f"jaxdist train {quote(run.experiment)} {name}"]
    path = quote(str(folder))
    return [
        f"jaxdist eval {path}",
        f"jaxdist ckpt verify {path}",
        f"jaxdist trace {path} -o trace.json",
    ]


def outcome_line(run: Run) -> str:
    """Say in one line how a run ended.

    >>> outcome_line(Run(name="d", experiment="digits", status="stopped", steps=440))
    'stopped   at step 440, not evaluated, no checkpoint'
    """
    parts = [] if run.status == "done" else [f"at step {format_count(run.steps)}"]
    if run.accuracy is None:
        parts.append("not evaluated")
    else:
        # A language model answers once a token, other networks once a sample.
        answers = run.answers or run.held_out
        of = (
            f" ({format_count(run.correct)} of {format_count(answers)})"
            if answers
            else ""
        )
        parts.append(f"test accuracy {format_percent(run.accuracy, 2)}{of}")
    parts += [f"loss {run.loss:.3f}"] if run.loss is not None else []
    parts += [f"{pluralize(run.skipped, 'step')} skipped"] if run.skipped else []
    parts += [format_duration(run.wall_s)] if run.wall_s else []
    kept = run.checkpoint
    parts.append(
        "no checkpoint" if kept is None else f"checkpoint at step {format_count(kept)}"
    )
    return f"{run.status:9} {', '.join(parts)}"


def step_time_percentiles(run: Run) -> tuple[str, str, str, str]:
    """Write the step time: median, 5th and 95th percentile, and their one unit.

    >>> times = {"step_s": 0.0364, "step_s_p5": 0.0349, "step_s_p95": 0.0398}
    >>> step_time_percentiles(Run(name="", experiment="", **times))
    ('36.4', '34.9', '39.8', 'ms')
    """
    scale, unit = (1e3, "ms") if run.step_s < 1 else (1.0, "s")
    times = [scale * t for t in (run.step_s, run.step_s_p5, run.step_s_p95)]
    # About three digits, and the same decimals for all three, so that they compare.
    decimals = 2 if times[0] < 9.995 else 1 if times[0] < 10_000 else 0
    median, low, high = (f"{t:,.{decimals}f}" for t in times)
    return median, low, high, unit


def phases_by_size(run: Run) -> list[tuple[str, float]]:
    """Order the phases of a run in seconds: longest first, `other` last."""
    last = PHASES[-1]
    return sorted(
        ((name, s) for name, s in run.phases_s.items() if s > 0),
        key=lambda phase: (phase[0] == last, -phase[1]),
    )


def text_bar(share: float, width: int, ascii_only: bool) -> str:
    """Draw a measured bar in characters.

    Args:
        share: of the longest bar, 0 to 1.
        width: characters of the longest bar.
        ascii_only: whether blocks cannot be printed.

    >>> text_bar(0.334, 20, ascii_only=False), text_bar(0.334, 20, ascii_only=True)
    ('██████▋', '#######')
    """
    if ascii_only:
        return "#" * round(share * width)
    # Block characters divide a cell into eighths.
    whole, eighths = divmod(int(share * width * 8), 8)
    return "█" * whole + _PARTIAL_BARS[eighths].strip()


def _phase_table(run: Run, width: int, ascii_only: bool) -> list[Text]:
    phases = phases_by_size(run)
    if not phases:
        return []
    rows = [Text.assemble(("Time by phase", "title"), f"{'s':>10}{'share':>9}")]
    whole, longest = sum(s for _, s in phases), max(s for _, s in phases)
    # Bars are what a narrow terminal goes without first: numbers say the same.
    room = max(min(_BAR_WIDTH, width - (_TABLE_WIDTH - _BAR_WIDTH)), 0)
    for name, s in phases:
        seconds = f"{s:,.1f}" if s >= 0.05 else "< 0.1"
        line = Text(f"{name:13}{seconds:>10}{format_percent(s / whole):>9}  ")
        drawn = text_bar(s / longest, room, ascii_only)
        rows.append(line.append(drawn, PHASE_FILLS.get(name, "wait")))
    return rows
