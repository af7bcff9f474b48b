"""The header and the summary of a run in a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.plan import Plan
from jaxdist.core.run_record import PHASES, Run
from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.core.text.theme import PHASE_FILLS

_COLUMN_WIDTH: Final = 46


@dataclass(frozen=True, kw_only=True)
class TerminalRunHeader:
    """What is known of a run before its first step; prints as the block on a console.

    The facts stand in two columns where they fit, else one below the other.
    """

    experiment: str
    """Name of the experiment, or the path of its file."""
    plan: Plan
    """The layout that will run."""
    platform: str
    """Kind of device: cpu, gpu or tpu."""
    is_virtual: bool = False
    """Whether the devices are slices of the host's processor."""
    processes: int = 1
    """Processes of the run, over all nodes."""
    model: str
    """Name of the network."""
    parameter_count: int
    """Trainable numbers in it."""
    frozen_count: int = 0
    """Numbers of its parameters that are not trained."""
    data: str
    """Name of the data set."""
    train_samples: int
    """Samples to train on."""
    test_samples: int
    """Samples held out."""
    batch: int
    """Samples in a global batch."""
    epochs: float
    """Epochs to train; a part of one is allowed."""
    steps: int
    """Steps to train."""
    folder: Path
    """Folder of the run."""
    resumed_at: int | None = None
    """Step of the newest verified checkpoint, when the run resumes from one."""
    value_sources: Mapping[str, int] = field(default_factory=dict)
    """How many values each origin set: default, experiment, command line, the plan."""
    audit: str = ""
    """What the audit of the compiled step found, as one line."""
    memory_bytes: int = 0
    """Memory a device needs for the compiled step."""
    learning_rate: str = ""
    """How the learning rate begins, as one line."""
    weight_decay: str = ""
    """Which parameters decay and which samples share statistics, as one line."""
    shuffle: str = ""
    """How samples are exchanged, as one line; empty: each epoch draws from all."""
    attention: str = ""
    """Kernel of its attention; empty where the network has none."""
    has_logit_chunks: bool = False
    """Whether the loss multiplies out logits in chunks of tokens."""
    all_reduce: str = ""
    """How gradients are summed, where that was measured, as one line."""
    warnings: Sequence[str] = ()
    """What was skipped or changed, one line each."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        width, count = options.max_width, format_count
        kind = f"{self.platform}, fake" if self.is_virtual else self.platform
        devices = pluralize(self.plan.mesh.devices, "device")
        where = f"    {devices} ({kind}), {pluralize(self.processes, 'process')}"
        named = ((self.experiment, "title"), "    ", (self.plan.title, "plan"))
        yield Text.assemble(*named, where)

        # Slices of a sample and stages do not divide the batch.
        replica = self.batch // self.plan.batch_shards
        attempt = " (new)"
        if self.resumed_at is not None:
            attempt = f", resumed at step {count(self.resumed_at)} (newest verified)"
        left = [
            f"model   {self.model}, "
            f"{format_parameters(self.parameter_count, self.frozen_count)}",
            f"batch   {count(self.batch)} global, {count(replica)} a replica",
            f"run     {self.folder}{attempt}",
            f"rate    {self.learning_rate}" if self.learning_rate else "",
            f"audit   {self.audit}" if self.audit else "",
            "",
        ]
        sources = self.value_sources
        # Defaults are the most and say the least: they are only counted.
        values = [pluralize(sum(sources.values()), "value")]
        if by_experiment := sources.get("experiment"):
            values.append(f"{by_experiment} by the experiment")
        if typed := sources.get("command line"):
            values.append(f"{typed} on the command line")
        if by_plan := sources.get("the plan"):
            values.append(f"{by_plan} by the plan")
        train, test = count(self.train_samples), count(self.test_samples)
        epochs, steps = pluralize(self.epochs, "epoch"), pluralize(self.steps, "step")
        memory = format_size(self.memory_bytes)
        right = [
            f"data    {self.data}, {train} train, {test} test",
            f"length  {epochs}, {steps}",
            f"config  {', '.join(values)}",
            f"decay   {self.weight_decay}" if self.weight_decay else "",
            f"memory  {memory} a device, compiled" if self.memory_bytes else "",
            f"shuffle {self.shuffle}" if self.shuffle else "",
        ]

        # Side by side only where no fact of either column would be cut or wrapped.
        column = min(_COLUMN_WIDTH, width - 2 - max(map(len, right)))
        if column >= max(map(len, left)) + 2:
            for one, other in zip(left, right):
                if one or other:
                    yield Text("  " + one.ljust(column) + other)
        else:
            facts = [fact for pair in zip(left, right) for fact in pair if fact]
            yield from (wrap_hanging("  " + fact, 10, width) for fact in facts)
        # On a processor it is always written out.
        if self.attention and self.platform != "cpu":
            yield Text(f"  attention: {self.attention}")
        if self.has_logit_chunks:
            yield Text("  logits: in chunks")
        if self.all_reduce:
            yield wrap_hanging(f"  sums    {self.all_reduce}", 10, width)
        for warning in self.warnings:
            yield wrap_hanging(f"warn:     {warning}", 10, width)


def wrap_hanging(text: str, indent: int, width: int) -> Text:
    """Wrap a line so that the lines after the first are indented to its text.

    Words longer than a line (paths) are left whole: they can still be copied.
    """
    lines, line = [], text[:indent]
    for word in text[indent:].split():
        # `line.strip()` keeps a first word that is longer than a line from making an
        # empty one.
        if len(line) + len(word) + 1 > width and line.strip():
            lines.append(line.rstrip())
            line = " " * indent
        line += word + " "
    lines.append(line.rstrip())
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def format_parameters(trained: int, frozen: int) -> str:
    """Write the size of a network, and how much of it is trained.

    >>> format_parameters(1234, 0), format_parameters(12, 1222)
    ('1,234 parameters', '12 of 1,234 parameters trained')
    """
    if not frozen:
        return pluralize(trained, "parameter")
    whole = pluralize(trained + frozen, "parameter")
    return f"{format_count(trained)} of {whole} trained"


def pluralize(number: float, noun: str) -> str:
    """Write a count of things.

    >>> pluralize(1, "process"), pluralize(1_437, "step"), pluralize(0.5, "epoch")
    ('1 process', '1,437 steps', '0.5 epochs')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


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
        # A path or a command that is cut cannot be typed.
        report = f"\n  report   {self.folder / 'report.html'}"
        yield Text(report, no_wrap=True, overflow="ignore")
        for number, command in enumerate(self.next_commands):
            name = "try" if number == 0 else ""
            line = Text.assemble(f"  {name:8} ", (command, "cmd"))
            line.no_wrap, line.overflow = True, "ignore"
            yield line


def run_summary(run: Run, folder: Path, commands: Sequence[str]) -> TerminalRunSummary:
    """Make the block that ends a training.

    Args:
        run: what happened.
        folder: folder of the run.
        commands: commands to try next, of which three are shown.
    """
    return TerminalRunSummary(run=run, folder=folder, next_commands=tuple(commands)[:3])


def finished_text(run: Run, name: str) -> str:
    """Say that a run which is started again was finished before.

    >>> finished_text(Run(name="d", experiment="digits", status="done", steps=440), "d")
    'finished  run d at step 440: not evaluated, no checkpoint'
    """
    # The time is that of its last attempt, which was not this one.
    came = outcome_line(replace(run, wall_s=0.0)).removeprefix("done").strip()
    return f"finished  run {name} at step {format_count(run.steps)}: {came}"


def outcome_line(run: Run) -> str:
    """Say in one line how a run ended.

    >>> outcome_line(Run(name="d", experiment="digits", status="stopped", steps=440))
    'stopped   at step 440, not evaluated, no checkpoint'
    """
    parts = [] if run.status == "done" else [f"at step {format_count(run.steps)}"]
    if run.accuracy is None:
        # An objective may have no answers.
        parts += [] if run.loss is not None else ["not evaluated"]
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
    if run.best is not None:
        parts.append(best_text(run.best))
    return f"{run.status:9} {', '.join(parts)}"


def best_text(best: BestCheckpoint) -> str:
    """Say which checkpoint is the best, and by which value.

    >>> best_text(BestCheckpoint(step=360, metric="accuracy", value=0.99722))
    'best at step 360 (accuracy 0.9972)'
    """
    return f"best at step {format_count(best.step)} ({best.metric} {best.value:.4g})"


def step_time_percentiles(run: Run) -> tuple[str, str, str, str]:
    """Write the step time: median, 5th and 95th percentile, and their one unit.

    >>> times = {"step_s": 0.0364, "step_s_p5": 0.0349, "step_s_p95": 0.0398}
    >>> step_time_percentiles(Run(name="", experiment="", **times))
    ('36.4', '34.9', '39.8', 'ms')
    """
    scale, unit = (1e3, "ms") if run.step_s < 1 else (1.0, "s")
    times = [scale * t for t in (run.step_s, run.step_s_p5, run.step_s_p95)]
    # About three digits, and the same decimals for all three, so that they compare.
    # 9.995 itself would be written as 10.00.
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


class NumberColumn:
    """Numbers in one unit, with one number of decimals.

    Args:
        largest: the largest number of the column.
        unit: `B` or `FLOP`, to be prefixed.
    """

    def __init__(self, largest: int, unit: str) -> None:
        # The largest unit in which the largest number has three digits: with a smaller
        # one columns are too wide, with a larger one most numbers are below the last
        # digit.
        prefixes = (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
        fitting = [one for one in prefixes if largest >= 100 * one[1]] or prefixes[:1]
        self.unit, self.divisor = f"{fitting[-1][0]}{unit}", fitting[-1][1]

    def format(self, value: int) -> str:
        """Write a value: `619.5`, `< 0.1` below the last digit, `0` for none.

        >>> [NumberColumn(619_520, "FLOP").format(n) for n in (619_520, 27, 0)]
        ['619.5', '< 0.1', '0']
        """
        if self.divisor == 1 or not value:
            return f"{value:,}"
        shown = value / self.divisor
        # Little must not read as none.
        return f"{shown:,.1f}" if shown >= 0.05 else "< 0.1"
