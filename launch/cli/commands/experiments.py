"""`jaxdist experiments`: what can be trained."""

from argparse import Namespace
from dataclasses import asdict

from jaxdist.launch.cli.parser import CommandParser, add_json_option
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

summary = "list the experiments that come with jaxdist"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a name to show in full."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this one in full")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the catalogue, or one entry with its source, time and score."""
    from jaxdist.core.errors import BadInput, did_you_mean
    from jaxdist.launch.config.experiment import LIST_EXPERIMENTS_HINT, list_experiments

    entries = {entry.name: entry for entry in list_experiments()}
    if args.name and args.name not in entries:
        # Names are compared with those that come with jaxdist; files are not listed.
        near = did_you_mean(args.name, entries)
        meant = f"did you mean {near}? " if near else ""
        raise BadInput(
            f"no experiment named {args.name}", remedy=meant + LIST_EXPERIMENTS_HINT
        )
    shown = [entries[args.name]] if args.name else list(entries.values())
    if args.json:
        print_json({"experiments": [asdict(entry) for entry in shown]})
        return 0
    out = console()
    if args.name:
        out.print(f"{args.name}\n", style="title")
        out.print(shown[0].details + "\n")
        print_next_commands(
            out, f"jaxdist train {args.name}", f"jaxdist config {args.name}"
        )
        return 0
    rows = make_table("experiment", "what it trains")
    for entry in shown:
        rows.add_row(entry.name, entry.summary)
    print_table(out, rows)
    first = shown[0].name
    print_next_commands(out, f"jaxdist experiments {first}", f"jaxdist train {first}")
    return 0
