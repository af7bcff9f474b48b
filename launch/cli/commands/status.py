"""`jaxdist status RUN`: whether a run goes, has ended or has died, and where it is."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_runs_folder_option,
)

summary = "say whether runs go, have ended or died, and at which step"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, or none for all of a folder."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="one run (all in the folder)"
    )
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Read the folder and print."""
    from jaxdist.launch.cli.status_table import print_status

    print_status(args.run, args.dir, as_json=args.json)
    return 0
