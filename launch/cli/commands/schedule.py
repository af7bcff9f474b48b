"""`jaxdist schedule EXPERIMENT`: how its weights will move, without training."""

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxdist.launch.terminal.console import Glyphs
    from jaxdist.launch.training.job.optimizer_schedule import OptimizerSchedule

summary = "print learning rates, decay and norms of an experiment, without training"
_BAR_WIDTH = 30


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides."""
    add_experiment_arguments(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the schedule."""
    from dataclasses import asdict, replace

    from jaxdist.launch.config.resolve import resolve_config

    resolved = resolve_config(args.experiment, args.overrides)

    import jax

    from jaxdist.input.registry import open_data
    from jaxdist.launch.terminal.console import console, print_json
    from jaxdist.launch.training.job.batch_spec import feature_spec, fit_model_config
    from jaxdist.launch.training.job.optimizer_schedule import optimizer_schedule

    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, _ = open_data(config.data, feature_spec(config))
    config = replace(config, model=fit_model_config(config, train))
    schedule = optimizer_schedule(config, config.plan, len(train))
    if args.json:
        print_json(asdict(schedule))
    else:
        words = " ".join((args.experiment, *args.overrides))
        _print_schedule(console(), schedule, words)
    return 0


def _print_schedule(out: "Console", schedule: "OptimizerSchedule", words: str) -> None:
    from jaxdist.launch.terminal.console import (
        console_glyphs,
        print_next_commands,
        print_table,
    )
    from jaxdist.launch.terminal.run_header import pluralize

    optim = schedule.optim
    out.print(
        f"{words.split(maxsplit=1)[0]}    {optim.name}, "
        f"{pluralize(schedule.steps, 'step')}"
    )
    for name, fact in _fact_lines(schedule):
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    print_table(out, _learning_rate_table(schedule, console_glyphs(out)))
    print_next_commands(out, f"jaxdist train {words}")


def _fact_lines(schedule: "OptimizerSchedule") -> Iterator[tuple[str, str]]:
    """Say in a line each what the settings come to."""
    from jaxdist.launch.terminal.run_header import pluralize

    optim, ramp = schedule.optim, schedule.ramp
    rise = (
        f"{ramp.initial_rate:g} to {ramp.peak_rate:g} over "
        f"{pluralize(ramp.steps, 'step')}"
    )
    drops = ", ".join(f"{step:,}" for step in schedule.milestones)
    yield "rate", schedule.peak_rate_text
    yield "warm-up", f"{rise} ({optim.warmup_epochs:g} epochs)"
    yield "then", f"a tenth from step {drops}" if drops else "half a cosine to 0"
    (leaves, all_leaves), (numbers, all_numbers) = schedule.leaves, schedule.numbers
    yield (
        "decay",
        f"{optim.weight_decay:g} on {leaves} of {all_leaves} leaves, {numbers:,} of "
        f"{all_numbers:,} parameters; norms and biases none",
    )
    yield "batch", _batch_line(schedule)
    if schedule.sharing:
        yield "norms", f"{pluralize(schedule.sharing, 'sample')} share batch statistics"
    if extras := ", ".join(_optional_settings(schedule)):
        yield "also", extras


def _batch_line(schedule: "OptimizerSchedule") -> str:
    from jaxdist.launch.terminal.run_header import pluralize

    parts = (
        f"{pluralize(schedule.batch, 'sample')}, "
        f"{pluralize(schedule.replicas, 'replica')}"
    )
    if schedule.optim.accumulate == 1:
        return f"{parts} of {schedule.microbatch}"
    times = schedule.optim.accumulate
    return f"{parts}, {times} microbatches of {schedule.microbatch} on each"


def _optional_settings(schedule: "OptimizerSchedule") -> Iterator[str]:
    optim = schedule.optim
    if optim.clip:
        yield f"gradients no longer than {optim.clip:g}"
    if optim.ema:
        yield f"evaluated on an average of the weights, {optim.ema:g} old"
    if optim.skip_nonfinite:
        yield f"up to {optim.skip_nonfinite} steps in a row skipped if not finite"


def _learning_rate_table(schedule: "OptimizerSchedule", signs: "Glyphs") -> "Table":
    from jaxdist.launch.terminal.console import make_table

    heads = ("epoch", "from step", "learning rate")
    rows = make_table(*heads, "", right=heads)
    most = max((row.rate for row in schedule.epochs), default=0) or 1
    for row in schedule.epochs:
        bar = signs.predicted_bar * round(_BAR_WIDTH * row.rate / most)
        rows.add_row(f"{row.epoch:,}", f"{row.step:,}", f"{row.rate:.6g}", bar)
    return rows
