"""`jaxdist runs`: the runs in a folder, with what came of each."""

import sys
from argparse import Namespace
from dataclasses import asdict

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

summary = "list the runs in a folder: experiment, state, steps, score"
example = "--dir runs"


def add_arguments(parser: CommandParser) -> None:
    """Take the folder of the runs."""
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Read what the runs have written, and print a line each."""
    from jaxdist.core.text.formatting import format_count, format_percent
    from jaxdist.launch.run_folder.run_list import list_runs

    found = list_runs(args.dir)
    if args.json:
        print_json({"runs": [asdict(row) for row in found]})
        return 0
    if not found:
        sys.stdout.write(
            f"no runs in {args.dir}/; start one with: jaxdist train digits\n"
        )
        return 0
    out, right = console(), ("step", "test accuracy", "test loss")
    rows = make_table("run", "experiment", "state", *right, right=right)
    for row in found:
        of = f" of {format_count(row.steps)}" if row.steps else ""
        accuracy, loss = row.test.get("accuracy"), row.test.get("loss")
        rows.add_row(
            *(row.name, row.experiment, row.state, f"{format_count(row.step)}{of}"),
            "" if accuracy is None else format_percent(accuracy, 2),
            "" if loss is None else f"{loss:.3f}",
        )
    print_table(out, rows)
    print_next_commands(out, f"jaxdist status {found[0].folder}")
    return 0
