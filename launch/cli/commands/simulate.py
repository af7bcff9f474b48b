"""`jaxdist simulate`: the time of collectives on links that are shared."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.cli.parser import CommandParser, add_json_option, query_from
from jaxdist.launch.terminal.console import console, print_json

summary = "simulate collectives on a network whose links are shared"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take `allreduce` and a size, or `traces` and a folder, and a network."""
    one = parser.add_form(
        "allreduce",
        "simulate an all-reduce, step by step",
        example="--topology torus --ranks 64 --mib 100",
    )
    _add_network(one)
    _add_all_reduce(one)
    add_json_option(one)
    traces = parser.add_form(
        "traces",
        "replay the collectives of execution traces (Chakra)",
        example="traces/step --topology fat_tree oversubscription=2",
    )
    traces.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        help="traces of all ranks, NAME.0.et and so on",
    )
    _add_network(traces)
    add_json_option(traces)


def _add_network(form: CommandParser) -> None:
    """Add what both forms take: a network, a schedule, and devices of the ranks."""
    add = form.add_argument
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
    add(
        "--placement",
        metavar="ORDER",
        default="in_order",
        help="devices of the ranks: in_order, dealt, reversed_bits, random:SEED, or "
        "0,2,1,3 (in_order)",
    )


def _add_all_reduce(form: CommandParser) -> None:
    add = form.add_argument
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


def run(args: Namespace) -> int:
    """Simulate and print."""
    if args.action == "traces":
        from jaxdist.launch.analysis.trace_replay import (
            ReplayQuery,
            print_replay,
            run_replay,
        )

        replayed = run_replay(query_from(args, ReplayQuery))
        if args.json:
            print_json(replayed.to_dict())
        else:
            print_replay(console(), replayed)
        return 0
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
