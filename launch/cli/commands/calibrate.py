"""`jaxdist calibrate`: measure a machine, read what others measured, or fit rows."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    check_output_folder,
)

summary = "measure this machine, read nccl-tests or OSU, or fit measured rows"


def add_arguments(parser: CommandParser) -> None:
    """Take what to measure; or `read`, or `fit`, and files that were measured."""
    parser.add_argument(
        "words",
        metavar="EXPERIMENT [KEY=VALUE] | fit FILE.csv | read FILE",
        nargs="*",
        default=(),
        help="measure, and time the layers of an experiment too; fit constants to rows "
        "that were measured elsewhere; read what nccl-tests or OSU printed",
    )
    parser.add_argument(
        "--devices",
        metavar="N",
        type=int,
        help="devices that are measured together (one; of several processes all they "
        "have; those of --cluster)",
    )
    parser.add_argument(
        "--largest",
        metavar="SIZE",
        help="bytes up to which collectives are timed (8MB; 64MB for large gradients "
        "on fast links)",
    )
    parser.add_argument(
        "--dtype", default="float32", help="of the numbers of kernels (float32)"
    )
    parser.add_argument(
        "--train",
        metavar="SELECTION",
        help="fit: rows to fit: 'devices<=8', 'row %% 3 == 0', 'model in (a, b) and "
        "batch==64'; the others are left to be scored",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="for the cluster (cluster.json), or for the constants (fitted.json)",
    )
    parser.add_argument(
        "--format", metavar="NAME", help="form of the rows (told by the header)"
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="that they were measured on (the one of the format); read: the one whose "
        "level is replaced; EXPERIMENT: the one whose layers these are",
    )
    parser.add_argument(
        "--level", metavar="NAME", help="read: of the cluster (that the ranks span)"
    )
    parser.add_argument(
        "--ranks", metavar="N", type=int, help="read: where OSU does not print them"
    )
    parser.add_argument(
        "--program",
        metavar="NAME",
        help="read: which it was, where the text does not say or has several",
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
        "--noisy", action="store_true", help="take what spreads a lot as well"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Measure, read or fit, write and print."""
    first = args.words[0] if args.words else ""
    if first not in ("read", "fit"):
        return _measure(args)
    if first == "read" and len(args.words) > 1:
        return _import_benchmark(args)
    if first == "read" or len(args.words) != 2:
        raise BadInput(
            f"calibrate has no {' '.join(args.words)}",
            rule="jaxdist calibrate measures this machine, calibrate EXPERIMENT its "
            "layers too, calibrate read FILE takes what nccl-tests or OSU measured, "
            "calibrate fit FILE.csv fits constants to rows",
            values=" ".join(args.words),
            remedy=(
                "jaxdist calibrate -o cluster.json",
                "jaxdist calibrate resnet50 -o cluster.json",
                "jaxdist calibrate read FILE --cluster dgx-h100",
                "jaxdist calibrate fit FILE.csv",
            ),
        )
    if args.train is None:
        raise BadInput(
            "nothing says which rows to fit",
            rule="rows that are fitted are not scored later",
            values="no --train",
            remedy="--train 'devices<=8'",
        )
    return _fit(args)


def _measure(args: Namespace) -> int:
    from jaxdist.launch.calibration.measure import calibrate
    from jaxdist.launch.calibration.measure_table import print_calibration
    from jaxdist.launch.terminal.console import console, print_json

    args.output = args.output or Path("cluster.json")
    check_output_folder(args.output)
    made = calibrate(args)
    if not made.is_primary:
        return 0
    if args.json:
        print_json(made.to_dict())
    else:
        print_calibration(console(), made)
    return 0


def _import_benchmark(args: Namespace) -> int:
    from jaxdist.launch.calibration.import_benchmark import (
        import_level,
        print_level_import,
    )
    from jaxdist.launch.terminal.console import console, print_json

    args.output = args.output or Path("cluster.json")
    args.files = [Path(word) for word in args.words[1:]]
    made = import_level(args)
    if args.json:
        print_json(made.to_dict())
    else:
        print_level_import(console(), made)
    return 0


def _fit(args: Namespace) -> int:
    from jaxdist.launch.calibration.fit import print_fit, run_fit
    from jaxdist.launch.terminal.console import console, print_json

    args.output = args.output or Path("fitted.json")
    args.measured = Path(args.words[1])
    made = run_fit(args)
    if args.json:
        print_json(made.to_dict())
    else:
        print_fit(console(), made, args)
    return 0
