"""`jaxdist report RUN`: the report of a run, made again from what its folder holds."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_run_argument,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import console

summary = "write the report of a run again, with what is known by now"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run."""
    add_run_argument(parser, "run")
    add_runs_folder_option(parser)


def run(args: Namespace) -> int:
    """Write the report."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import find_run

    folder = find_run(args.run, folder=args.dir)
    console().print(f"wrote {write_report(folder.path)}")
    return 0
