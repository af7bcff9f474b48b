"""Options of launchers that start processes again, or continue with fewer of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.option_aliases import read_words
from jaxdist.launch.cli.parser import CommandParser

if TYPE_CHECKING:
    from jaxdist.launch.launchers.elastic.process_counts import FeasibleCounts
    from jaxdist.launch.launchers.elastic.process_range import ProcessRange


def add_restart_options(parser: CommandParser, *, rejoin: bool) -> None:
    """Add `args.restarts`, `args.grace` and, for elastic launches, `args.rejoin_after`.

    None is the default of the launcher, which differs.
    """
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help="start all again where one fails, up to N times (0; with a range of "
        "processes, 10)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="seconds that they have to save, on SIGTERM or Ctrl-C (30)",
    )
    if rejoin:
        parser.add_argument(
            "--rejoin-after",
            type=float,
            metavar="S",
            help="with a range, seconds before a process or host that was lost "
            "rejoins, twice as many each time (30)",
        )


def reject_rejoin_option(given: float | None) -> None:
    """Refuse `--rejoin-after` where the number of processes is fixed.

    Raises:
        BadInput: it is given.
    """
    # With a fixed number of processes all are started again, or none.
    if given is not None:
        raise BadInput(
            "no process is left out that could rejoin",
            rule="--rejoin-after is for a range of processes",
            values=f"--rejoin-after {given:g}",
            remedy="-n 2:4, or without --rejoin-after",
        )


def feasible_counts_of_program(
    program: Sequence[str], span: "ProcessRange"
) -> "FeasibleCounts":
    """Return the numbers of processes with which a program works.

    Args:
        program: `train` or `resume` with its words; any other works with each number.
        span: the least and the most that were asked for.

    Raises:
        BadInput: not with the least or the most of them, naming the nearest that do;
            or words that `train` does not know.
    """
    from jaxdist.launch.cli.commands import resume, train
    from jaxdist.launch.cli.train_run import training_request
    from jaxdist.launch.launchers.elastic.process_counts import (
        FeasibleCounts,
        feasible_counts,
    )
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_config_lock
    from jaxdist.launch.training.job.request import resolve_request

    # Nothing is known of other programs: each number will do.
    commands = {"train": train, "resume": resume}
    name = program[0]
    if name not in commands:
        counts = range(span.min_processes, span.max_processes + 1)
        return FeasibleCounts(counts=tuple(counts))
    # The plan says which counts divide it: it is read here as `train` will read it.
    parser = CommandParser(f"jaxdist {name}", commands[name].summary)
    commands[name].add_arguments(parser)
    # The program itself says which of its words have another name now.
    args = read_words(parser, program[1:]).args
    folder = find_run(args.run, folder=args.dir) if name == "resume" else None
    experiment = args.experiment if folder is None else ""
    if folder is not None:
        experiment = read_config_lock(folder).resolved.experiment
    asked = resolve_request(
        training_request(args, experiment, folder), for_training=True
    )
    return feasible_counts(asked.resolved.config, span)
