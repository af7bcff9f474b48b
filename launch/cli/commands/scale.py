"""`jaxdist scale EXPERIMENT --processes 1,2,4`: what more processes bring."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "train on more and more processes: speed, efficiency, reasons"
example = "digits --processes 1,2"

_RUNS_FOLDER: Final = "runs"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, and what is varied."""
    add_experiment_arguments(parser)
    add = parser.add_argument
    add(
        "--processes",
        metavar="N,N,...",
        required=True,
        help="numbers of processes, each with one device and one thread",
    )
    add("--batch", metavar="N,N,...", help="samples a step (the experiment's)")
    add(
        "--algorithms",
        metavar="NAME,NAME,...",
        help="plan.reduce.algorithm (the experiment's)",
    )
    add(
        "--input",
        metavar="real,synthetic",
        default="real",
        help="the experiment's samples, random ones, or both (real)",
    )
    add(
        "--scaling",
        choices=("strong", "weak"),
        default="strong",
        help="strong: --batch is of all processes; weak: of each (strong)",
    )
    add(
        "--testbed",
        action="store_true",
        help="in the hosts that `jaxdist testbed up` has made, not on loopback",
    )
    add(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="folder of the study; what is whole there is not run again "
        f"({_RUNS_FOLDER}/EXPERIMENT-scale)",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run what is not there yet, and show all of it."""
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.scaling.grid import parse_grid
    from jaxdist.launch.scaling.html_page import write_page
    from jaxdist.launch.scaling.json_view import scaling_tree
    from jaxdist.launch.scaling.placement import scaling_placement
    from jaxdist.launch.scaling.runner import print_run, run_study
    from jaxdist.launch.scaling.study import make_study, study_overrides
    from jaxdist.launch.scaling.table import print_scaling_result

    # All runs are checked before the first one starts: a study takes hours.
    words = study_overrides(args.overrides)
    config = resolve_config(args.experiment, words).config
    grid = parse_grid(
        processes=args.processes,
        batches=args.batch or str(config.data.batch),
        reductions=args.algorithms or config.plan.reduce.algorithm,
        inputs=args.input,
        scaling=args.scaling,
        accumulate=config.optim.accumulate,
    )
    place = scaling_placement(grid.processes[-1], in_testbed=args.testbed)
    folder = args.output or Path(_RUNS_FOLDER, f"{config.name}-scale")
    study = make_study(args.experiment, words, config, grid, place, folder)
    result = run_study(study, partial(print_run, total=len(study.runs)))
    page = write_page(result, study.folder)
    if args.json:
        print_json(scaling_tree(result))
    else:
        # The other kind of scaling comes next, in a folder of its own.
        other = "weak" if args.scaling == "strong" else "strong"
        again = f"jaxdist scale {quote(args.experiment)} --processes {args.processes}"
        again += " --testbed" * args.testbed
        again += f" --scaling {other} -o {quote(f'{page.parent}-{other}')}"
        print_scaling_result(console(), result, page, [again])
    # Runs that failed are rows too; the exit code tells scripts of them.
    return 1 if result.lost else 0
