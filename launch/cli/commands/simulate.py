"""`jaxdist simulate allreduce`: what a step list takes on a network of shared links."""

from argparse import Namespace

from jaxdist.launch.cli.parser import CommandParser, add_json_option, query_from
from jaxdist.launch.terminal.console import console, print_json

summary = "simulate an all-reduce on a network whose links are shared"


def add_arguments(parser: CommandParser) -> None:
    """Take `allreduce`, a step list, a network and a size."""
    parser.add_argument("collective", choices=("allreduce",), help="what is simulated")
    parser.add_argument(
        "settings",
        metavar="setting=value",
        nargs="*",
        default=(),
        help="of the topology: per_leaf=32 uplinks=16 bandwidth=12.5GB/s ...",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        default="halving_doubling",
        help="a step list of docs/algorithms.md (halving_doubling)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME|FILE",
        default="fat_tree",
        help="star, fat_tree, torus, dragonfly, dln, tsubame3, abci, or a .yaml file "
        "(fat_tree)",
    )
    parser.add_argument("--ranks", metavar="P", type=int, default=64, help="(64)")
    parser.add_argument(
        "--mib", metavar="S", type=float, default=64, help="size of the array (64)"
    )
    parser.add_argument(
        "--sharing",
        metavar="RULE",
        help="maxmin: equal parts of a link; rtt: in parts of 1 / latency (maxmin; rtt "
        "with smpi)",
    )
    parser.add_argument(
        "--factors",
        metavar="NAME",
        default="ideal",
        help="ideal: links as they are; smpi: SimGrid's model of MPI over TCP (ideal)",
    )
    parser.add_argument(
        "--per-host",
        metavar="G",
        type=int,
        help="ranks of a host, for lists of two levels (those of the platform)",
    )
    parser.add_argument(
        "--density",
        metavar="D",
        type=float,
        help="sum entries of sparse arrays, this part of their numbers, with fill-in",
    )
    parser.add_argument(
        "--pace",
        metavar="RULE",
        default="steps",
        help="steps: a step begins when all of the one before have arrived; ranks: "
        "each rank goes on by itself, as processes do (steps)",
    )
    parser.add_argument(
        "--place",
        metavar="ORDER",
        default="in_order",
        help="devices of the ranks: in_order, dealt, reversed_bits, random:SEED, or "
        "0,2,1,3 (in_order)",
    )
    parser.add_argument(
        "--group",
        metavar="G",
        type=int,
        help="sum over each G neighbouring ranks, all groups at once",
    )
    parser.add_argument(
        "--halo-mib",
        metavar="H",
        type=float,
        help="beside it, neighbouring ranks exchange this much, both ways",
    )
    parser.add_argument(
        "--mitigate",
        action="store_true",
        help="search lists and placements for less contention",
    )
    parser.add_argument(
        "--plot", action="store_true", help="draw the time of each step"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Simulate and print."""
    from jaxdist.launch.analysis.collective_simulation import (
        SimulationQuery,
        print_simulation,
        run_simulation,
    )

    found = run_simulation(query_from(args, SimulationQuery))
    if args.json:
        print_json(found.to_dict())
    else:
        print_simulation(console(), found, plot=args.plot)
    return 0
