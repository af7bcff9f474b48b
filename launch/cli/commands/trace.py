"""`jaxdist trace RUN -o trace.json`: where the time went, for Perfetto."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.files import check_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_output_option,
    add_run_argument,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import console

summary = "write the phases of a run as a trace that Perfetto opens"
example = "digits -o trace.json"


def add_arguments(parser: CommandParser) -> None:
    """Take a run and a file."""
    add_run_argument(parser, "run")
    add_output_option(parser, "file to write (trace.json)", Path("trace.json"))
    add_runs_folder_option(parser)


def run(args: Namespace) -> int:
    """Write the trace."""
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.perfetto_trace import write_trace

    # The spans that a run writes as it goes: no profiler has to have been on.
    folder = find_run(args.run, folder=args.dir)
    check_output(args.output, force=args.force)
    path = write_trace(folder.path, args.output, force=args.force)
    out = console()
    out.print(f"wrote {path}: open it at ui.perfetto.dev or in chrome://tracing")
    return 0
