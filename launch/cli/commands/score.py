"""`jaxdist score`: predictions held against rows that somebody measured."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.cli.parser import CommandParser, add_json_option, query_from
from jaxdist.launch.terminal.console import console, print_json

summary = "score predictions on measured rows that were not fitted"
example = "tests/calibrate/data/vtrain/multi_node_calibration.csv"


def add_arguments(parser: CommandParser) -> None:
    """Take measured rows, and what to predict them with."""
    add = parser.add_argument
    add(
        "measured",
        metavar="FILE.csv|FOLDER",
        type=Path,
        help="measured rows: a file, or all CSV files of a folder",
    )
    add("--format", metavar="NAME", help="form of the rows (told by the header)")
    add(
        "--rows",
        metavar="SELECTION",
        help="score these rows; those that were fitted are then refused, not left out",
    )
    add(
        "--explain",
        metavar="N",
        type=int,
        help="print the terms of one row: its number in the file, from 0",
    )
    add(
        "--cluster",
        metavar="NAME|FILE",
        help="a name or a file of docs/clusters.md, or what `jaxdist calibrate fit` "
        "wrote",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Score and print."""
    from jaxdist.launch.calibration.score import ScoreQuery, print_score, run_score

    scored = run_score(query_from(args, ScoreQuery))
    print_json(scored.to_dict()) if args.json else print_score(console(), scored)
    return 0
