"""The block a person sees before training: what will run, where, on what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxdist.core.plan import Plan
from jaxdist.core.text.formatting import format_count, format_size

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
    """Step of the newest verified checkpoint, when the run goes on from one."""
    value_sources: Mapping[str, int] = field(default_factory=dict)
    """How many values each origin set: default, experiment, command line."""
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
    all_reduce: str = ""
    """How gradients are summed, where that was measured, as one line."""
    warnings: Sequence[str] = ()
    """What was skipped or changed, one line each."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield _title_line(self)
        left, right = _left_column(self), _right_column(self)
        column = min(_COLUMN_WIDTH, options.max_width - 2 - _max_length(right))
        if column >= _max_length(left) + 2:
            pairs = ((one, other) for one, other in zip(left, right) if one or other)
            for one, other in pairs:
                yield Text("  " + one.ljust(column) + other)
        else:
            facts = [fact for pair in zip(left, right) for fact in pair if fact]
            yield from (
                wrap_hanging("  " + fact, 10, options.max_width) for fact in facts
            )
        if self.all_reduce:
            yield wrap_hanging(f"  sums    {self.all_reduce}", 10, options.max_width)
        for warning in self.warnings:
            yield wrap_hanging(f"warn:     {warning}", 10, options.max_width)


def wrap_hanging(text: str, indent: int, width: int) -> Text:
    """Wrap a line so that what follows the first stands under its text.

    Words longer than a line (paths) are left whole: they can still be copied.
    """
    lines, line = [], text[:indent]
    for word in text[indent:].split():
        if len(line) + len(word) + 1 > width and line.strip():
            lines.append(line.rstrip())
            line = " " * indent
        line += word + " "
    lines.append(line.rstrip())
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def pluralize(number: float, noun: str) -> str:
    """Write a count of things.

    >>> pluralize(1, "process"), pluralize(1_437, "step"), pluralize(0.5, "epoch")
    ('1 process', '1,437 steps', '0.5 epochs')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def _title_line(opening: TerminalRunHeader) -> Text:
    kind = f"{opening.platform}, fake" if opening.is_virtual else opening.platform
    devices = pluralize(opening.plan.mesh.devices, "device")
    parts = ((opening.experiment, "title"), "    ", (opening.plan.title, "plan"))
    where = f"    {devices} ({kind}), {pluralize(opening.processes, 'process')}"
    return Text.assemble(*parts, where)


def _left_column(opening: TerminalRunHeader) -> list[str]:
    replica = opening.batch // opening.plan.batch_shards
    sitting = (
        " (new)"
        if opening.resumed_at is None
        else f", resumed at step {format_count(opening.resumed_at)} (newest verified)"
    )
    return [
        f"model   {opening.model}, {format_count(opening.parameter_count)} parameters",
        f"batch   {format_count(opening.batch)} global, {format_count(replica)} a "
        "replica",
        f"run     {opening.folder}{sitting}",
        f"rate    {opening.learning_rate}" if opening.learning_rate else "",
        f"audit   {opening.audit}" if opening.audit else "",
        "",
    ]


def _right_column(opening: TerminalRunHeader) -> list[str]:
    train, test = (
        format_count(opening.train_samples),
        format_count(opening.test_samples),
    )
    values = pluralize(sum(opening.value_sources.values()), "value")
    places = {"experiment": "by the experiment", "command line": "on the command line"}
    set_by = [
        f"{opening.value_sources[who]} {place}"
        for who, place in places.items()
        if opening.value_sources.get(who)
    ]
    memory = format_size(opening.memory_bytes)
    return [
        f"data    {opening.data}, {train} train, {test} test",
        f"length  {pluralize(opening.epochs, 'epoch')}, "
        f"{pluralize(opening.steps, 'step')}",
        f"config  {', '.join([values, *set_by])}",
        f"decay   {opening.weight_decay}" if opening.weight_decay else "",
        f"memory  {memory} a device, compiled" if opening.memory_bytes else "",
        f"shuffle {opening.shuffle}" if opening.shuffle else "",
    ]


def _max_length(lines: Sequence[str]) -> int:
    return max(map(len, lines))
