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
        width, count = options.max_width, format_count
        kind = f"{self.platform}, fake" if self.is_virtual else self.platform
        devices = pluralize(self.plan.mesh.devices, "device")
        where = f"    {devices} ({kind}), {pluralize(self.processes, 'process')}"
        named = ((self.experiment, "title"), "    ", (self.plan.title, "plan"))
        yield Text.assemble(*named, where)

        # Slices of a sample and stages do not divide the batch.
        replica = self.batch // self.plan.batch_shards
        sitting = " (new)"
        if self.resumed_at is not None:
            sitting = f", resumed at step {count(self.resumed_at)} (newest verified)"
        left = [
            f"model   {self.model}, {count(self.parameter_count)} parameters",
            f"batch   {count(self.batch)} global, {count(replica)} a replica",
            f"run     {self.folder}{sitting}",
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


def pluralize(number: float, noun: str) -> str:
    """Write a count of things.

    >>> pluralize(1, "process"), pluralize(1_437, "step"), pluralize(0.5, "epoch")
    ('1 process', '1,437 steps', '0.5 epochs')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"
