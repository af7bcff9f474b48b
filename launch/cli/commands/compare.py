"""`jaxdist compare RUN`: what was predicted of a run beside what was measured."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.files import check_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_runs_folder_option,
    add_trust_option,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "set what was predicted of runs beside what they measured"
example = "digits --cluster cpu-fake"


def add_arguments(parser: CommandParser) -> None:
    """Take runs, a cluster, and where to write a better one."""
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", help="a run inside the folder, or a path")
    add(
        "--cluster",
        metavar="NAME|FILE",
        help="what they ran on: a name or a file of docs/clusters.md",
    )
    add(
        "--recalibrate",
        metavar="FILE",
        type=Path,
        help="write the cluster with speeds that explain these runs",
    )
    add("--force", action="store_true", help="overwrite FILE where it is there")
    add("--layers", action="store_true", help="show every layer, not the worst alone")
    add_runs_folder_option(parser)
    add_trust_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Compare and print."""
    from jaxdist.launch.planning.compare import (
        ComparisonQuery,
        compare_runs,
        print_comparison,
    )

    if args.recalibrate:
        check_output(args.recalibrate, force=args.force, option="--recalibrate")
    found = compare_runs(query_from(args, ComparisonQuery))
    if args.json:
        print_json(found.tree())
    else:
        print_comparison(console(), found, all_layers=args.layers)
    return 0
