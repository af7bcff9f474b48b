"""Process counts that a command line of `train` allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxdist.launch.launchers.elastic.process_range import ProcessRange

if TYPE_CHECKING:
    pass
from jaxdist.launch.launchers.elastic.process_counts import (
    FeasibleCounts,
    feasible_counts,
)


def feasible_counts_of_program(
    program: Sequence[str], span: ProcessRange
) -> FeasibleCounts:
    """Say with how many processes a program works.

    Args:
        program: `train` with its words; any other works with each number.
        span: the least and the most that were asked for.

    Raises:
        BadInput: not with the least or the most of them; naming the nearest that do;
            or words that `train` does not know.
    """
    if program[0] != "train":
        return FeasibleCounts(
            counts=tuple(range(span.min_processes, span.max_processes + 1))
        )
    from jaxdist.launch.cli.commands import train
    from jaxdist.launch.cli.parser import CommandParser
    from jaxdist.launch.config.plan_file import load_plan_overrides
    from jaxdist.launch.config.resolve import resolve_config

    parser = CommandParser("jaxdist train", train.summary)
    train.add_arguments(parser)
    args = parser.parse(program[1:])
    words = [*(load_plan_overrides(args.plan) if args.plan else ()), *args.overrides]
    return feasible_counts(resolve_config(args.experiment, words).config, span)
