"""`jaxdist oracle score`: predictions beside what was measured, row by row."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.arguments import Parser, add_json

summary = "score predictions on measured rows that were not fitted"


def add_arguments(parser: Parser) -> None:
    """Take `score`, measured rows, and the constants or the cluster to predict with."""
    parser.add_argument(
        "action", choices=("score",), help="score: predict measured rows"
    )
    parser.add_argument("measured", metavar="FILE.csv", type=Path, help="measured rows")
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="what `jaxdist calibrate fit` wrote, or a cluster with nothing fitted",
    )
    parser.add_argument(
        "--format", metavar="NAME", help="form of the rows (told by the header)"
    )
    parser.add_argument(
        "--rows",
        metavar="SELECTION",
        help="score these rows; those that were fitted are then refused, not left out",
    )
    parser.add_argument(
        "--explain",
        metavar="N",
        type=int,
        help="print the terms of one row: its number in the file, from 0",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Score and print."""
    from jaxdist.launch.console import console, print_json
    from jaxdist.launch.scoring import print_score, score_rows, tree

    asked = score_rows(args)
    if args.json:
        print_json(tree(asked))
    else:
        print_score(console(), asked)
    return 0
