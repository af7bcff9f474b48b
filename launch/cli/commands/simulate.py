"""`jaxdist simulate allreduce`: the time of a collective on links that are shared."""

from argparse import Namespace

from jaxdist.launch.cli.parser import CommandParser, add_json_option, query_from
from jaxdist.launch.terminal.console import console, print_json

summary = "simulate an all-reduce on a network whose links are shared"
example = "allreduce --topology torus --ranks 64 --mib 100"


def add_arguments(parser: CommandParser) -> None:
    """Take `allreduce`, a collective schedule, a network and a size."""
    add = parser.add_argument
    add("collective", choices=("allreduce",), help="what is simulated")
    add(
        "settings",
        metavar="setting=value",
        nargs="*",
        default=(),
        help="of the topology: per_leaf=32 uplinks=16 bandwidth=12.5GB/s ...",
    )
    add(
        "--algorithm",
        metavar="NAME",
        default="halving_doubling",
        help="a collective schedule of docs/algorithms.md (halving_doubling)",
    )
    add(
        "--topology",
        metavar="NAME|FILE",
        default="fat_tree",
        help="star, fat_tree, torus, dragonfly, dln, tsubame3, abci, or a .yaml file "
        "(fat_tree)",
    )
    add("--ranks", metavar="P", type=int, default=64, help="(64)")
    add("--mib", metavar="S", type=float, default=64, help="size of the array (64)")
    add(
        "--bandwidth-sharing",
        metavar="RULE",
        help="maxmin: equal parts of a link; rtt: in parts of 1 / latency (maxmin; rtt "
        "with smpi)",
    )
    add(
        "--protocol-overheads",
        metavar="NAME",
        default="ideal",
        help="ideal: links as they are; smpi: SimGrid's model of MPI over TCP (ideal)",
    )
    add(
        "--ranks-per-host",
        metavar="G",
        type=int,
        help="ranks of a host, for schedules of two levels (those of the platform)",
    )
    add(
        "--density",
        metavar="D",
        type=float,
        help="sum sparse arrays of which this share are entries, with fill-in",
    )
    add(
        "--synchronization",
        metavar="RULE",
        default="steps",
        help="steps: a step begins when all of the one before have arrived; ranks: "
        "each rank goes on by itself, as processes do (steps)",
    )
    add(
        "--placement",
        metavar="ORDER",
        default="in_order",
        help="devices of the ranks: in_order, dealt, reversed_bits, random:SEED, or "
        "0,2,1,3 (in_order)",
    )
    add(
        "--group",
        metavar="G",
        type=int,
        help="sum over each G neighbouring ranks, all groups at once",
    )
    add(
        "--halo-mib",
        metavar="H",
        type=float,
        help="beside it, neighbouring ranks exchange this much, both ways",
    )
    add(
        "--contention-search",
        action="store_true",
        help="search schedules and placements for less contention",
    )
    add("--plot", action="store_true", help="draw the time of each step")
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
