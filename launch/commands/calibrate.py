"""`jaxdist calibrate fit`: fit the free constants of predictions to measured rows."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.arguments import Parser, add_json

summary = "fit the constants of predictions to measured rows"


def add_arguments(parser: Parser) -> None:
    """Take `fit`, measured rows, which of them to fit, and a file for the constants."""
    parser.add_argument(
        "action", choices=("fit",), help="fit: to rows that were measured elsewhere"
    )
    parser.add_argument("measured", metavar="FILE.csv", type=Path, help="measured rows")
    parser.add_argument(
        "--train",
        metavar="SELECTION",
        required=True,
        help="rows to fit: 'devices<=8', 'row %% 3 == 0', 'model in (a, b) and "
        "batch==64'; the others are left to be scored",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("fitted.json"),
        help="for the constants (fitted.json)",
    )
    parser.add_argument(
        "--format", metavar="NAME", help="form of the rows (told by the header)"
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="that they were measured on (the one of the format)",
    )
    parser.add_argument(
        "--constants",
        metavar="A,B,...",
        help="constants to fit, at most three (the first three of the format)",
    )
    parser.add_argument(
        "--more", action="store_true", help="fit more than three constants"
    )
    parser.add_argument(
        "--noisy", action="store_true", help="fit rows that spread a lot as well"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Fit, write and print."""
    from jaxdist.launch.console import console, print_json
    from jaxdist.launch.fitting import fit_rows, print_fit

    made = fit_rows(args)
    if args.json:
        print_json(made.tree())
    else:
        print_fit(console(), made, args)
    return 0
