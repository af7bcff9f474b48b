"""`jaxdist schedule EXPERIMENT`: how its weights will move, without training."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import (
    console,
    console_glyphs,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.training.job.optimizer_schedule import OptimizerSchedule

summary = "print learning rates, decay and norms, without training"
example = "digits epochs=2"
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
    from jaxdist.launch.training.job.batch_spec import feature_spec, fit_model_config
    from jaxdist.launch.training.job.optimizer_schedule import optimizer_schedule

    config = resolved.config
    # Before the first array: jax makes float32 of all else.
    jax.config.update("jax_enable_x64", config.precision == "float64")
    # The data says how many steps an epoch has, and shapes that the model takes.
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
    from jaxdist.launch.terminal.run_summary import pluralize

    optim, ramp = schedule.optim, schedule.ramp
    steps = pluralize(schedule.steps, "step")
    out.print(f"{words.split(maxsplit=1)[0]}    {optim.name}, {steps}")
    rise = f"{ramp.initial_rate:g} to {ramp.peak_rate:g}"
    over = f"{pluralize(ramp.steps, 'step')} ({optim.warmup_epochs:g} epochs)"
    # Without milestones the rate decays by a cosine, or not at all.
    stays = schedule.optim.is_schedule_free
    decay = "constant: no schedule" if stays else "half a cosine to 0"
    drops = ", ".join(f"{step:,}" for step in schedule.milestones)
    (leaves, all_leaves), (numbers, all_numbers) = schedule.leaves, schedule.numbers
    batch = (
        f"{pluralize(schedule.batch, 'sample')}, "
        f"{pluralize(schedule.replicas, 'replica')}"
    )
    if optim.accumulate == 1:
        batch += f" of {schedule.microbatch}"
    else:
        batch += f", {optim.accumulate} microbatches of {schedule.microbatch} on each"
    facts = {
        "rate": schedule.peak_rate_text,
        "warm-up": f"{rise} over {over}",
        "then": f"a tenth from step {drops}" if drops else decay,
        "decay": f"{optim.weight_decay:g} on {leaves} of {all_leaves} leaves, "
        f"{numbers:,} of {all_numbers:,} parameters; norms and biases none",
        "batch": batch,
    }
    if schedule.sharing:
        shared = pluralize(schedule.sharing, "sample")
        facts["norms"] = f"{shared} share batch statistics"
    # Settings that are off by default are named only where they are on.
    extras = (
        (optim.clip, f"gradients no longer than {optim.clip:g}"),
        (optim.ema, f"evaluated on an average of the weights, {optim.ema:g} old"),
        (
            optim.skip_nonfinite,
            f"up to {optim.skip_nonfinite} steps in a row skipped if not finite",
        ),
    )
    if any(value for value, _ in extras):
        facts["also"] = ", ".join(text for value, text in extras if value)
    for name, fact in facts.items():
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    heads = ("epoch", "from step", "learning rate")
    rows, glyphs = make_table(*heads, "", right=heads), console_glyphs(out)
    # A rate may be 0 in all epochs, of a run without any.
    most = max((row.rate for row in schedule.epochs), default=0) or 1
    for row in schedule.epochs:
        bar = glyphs.predicted_bar * round(_BAR_WIDTH * row.rate / most)
        rows.add_row(f"{row.epoch:,}", f"{row.step:,}", f"{row.rate:.6g}", bar)
    print_table(out, rows)
    print_next_commands(out, f"jaxdist train {words}")
