"""`jaxdist schedule EXPERIMENT`: how its weights will move, without training."""

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import CommandParser, add_experiment, add_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxdist.launch.terminal.console import Glyphs
    from jaxdist.launch.training.job.optimizer_schedule import OptimizerSchedule

summary = "print learning rates, decay and norms of an experiment, without training"
_BAR = 30


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides."""
    add_experiment(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Print the schedule."""
    from dataclasses import asdict, replace

    from jaxdist.launch.config.resolve import resolve

    resolved = resolve(args.experiment, args.overrides)

    import jax

    from jaxdist.input.registry import open_data
    from jaxdist.launch.terminal.console import console, print_json
    from jaxdist.launch.training.job.batch_spec import fitted, wanted
    from jaxdist.launch.training.job.optimizer_schedule import schedule_of

    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, _ = open_data(config.data, wanted(config))
    config = replace(config, model=fitted(config, train))
    schedule = schedule_of(config, config.plan, len(train))
    if args.json:
        print_json(asdict(schedule))
    else:
        words = " ".join((args.experiment, *args.overrides))
        _print(console(), schedule, words)
    return 0


def _print(out: "Console", schedule: "OptimizerSchedule", words: str) -> None:
    from jaxdist.launch.terminal.console import marks, print_next, print_table
    from jaxdist.launch.terminal.run_header import many

    optim = schedule.optim
    out.print(
        f"{words.split(maxsplit=1)[0]}    {optim.name}, {many(schedule.steps, 'step')}"
    )
    for name, fact in _facts(schedule):
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    print_table(out, _table(schedule, marks(out)))
    print_next(out, f"jaxdist train {words}")


def _facts(schedule: "OptimizerSchedule") -> Iterator[tuple[str, str]]:
    """Say in a line each what the settings come to."""
    from jaxdist.launch.terminal.run_header import many

    optim, ramp = schedule.optim, schedule.ramp
    rise = f"{ramp.first:g} to {ramp.peak:g} over {many(ramp.steps, 'step')}"
    drops = ", ".join(f"{step:,}" for step in schedule.milestones)
    yield "rate", schedule.peak
    yield "warm-up", f"{rise} ({optim.warmup_epochs:g} epochs)"
    yield "then", f"a tenth from step {drops}" if drops else "half a cosine to 0"
    (leaves, all_leaves), (numbers, all_numbers) = schedule.leaves, schedule.numbers
    yield (
        "decay",
        f"{optim.weight_decay:g} on {leaves} of {all_leaves} leaves, {numbers:,} of "
        f"{all_numbers:,} parameters; norms and biases none",
    )
    yield "batch", _batch(schedule)
    if schedule.sharing:
        yield "norms", f"{many(schedule.sharing, 'sample')} share batch statistics"
    if extras := ", ".join(_extras(schedule)):
        yield "also", extras


def _batch(schedule: "OptimizerSchedule") -> str:
    from jaxdist.launch.terminal.run_header import many

    parts = f"{many(schedule.batch, 'sample')}, {many(schedule.replicas, 'replica')}"
    if schedule.optim.accumulate == 1:
        return f"{parts} of {schedule.microbatch}"
    times = schedule.optim.accumulate
    return f"{parts}, {times} microbatches of {schedule.microbatch} on each"


def _extras(schedule: "OptimizerSchedule") -> Iterator[str]:
    optim = schedule.optim
    if optim.clip:
        yield f"gradients no longer than {optim.clip:g}"
    if optim.ema:
        yield f"evaluated on an average of the weights, {optim.ema:g} old"
    if optim.skip_nonfinite:
        yield f"up to {optim.skip_nonfinite} steps in a row skipped if not finite"


def _table(schedule: "OptimizerSchedule", signs: "Glyphs") -> "Table":
    from jaxdist.launch.terminal.console import table

    heads = ("epoch", "from step", "learning rate")
    rows = table(*heads, "", right=heads)
    most = max((row.rate for row in schedule.epochs), default=0) or 1
    for row in schedule.epochs:
        bar = signs.predicted * round(_BAR * row.rate / most)
        rows.add_row(f"{row.epoch:,}", f"{row.step:,}", f"{row.rate:.6g}", bar)
    return rows
