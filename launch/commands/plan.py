"""`jaxdist plan stages`: a network cut into stages for a number of devices."""

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from jaxdist.launch.arguments import Parser, add_json, check_folder

summary = "choose stages and replicas for a network, by PipeDream's recurrences"


def add_arguments(parser: Parser) -> None:
    """Take `stages`, a profile, devices and links."""
    parser.usage = (
        "jaxdist plan stages --profile FILE --workers N --bandwidth B [options]"
    )
    parser.add_argument(
        "what",
        choices=("stages",),
        help="stages: where to cut a network, and how many devices each stage has",
    )
    _add_question(parser)
    _add_costs(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write the plan that `jaxdist train EXPERIMENT --plan FILE` runs",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Search, write and print."""
    from jaxdist.launch.console import console, print_json
    from jaxdist.launch.plan.stages_asked import find_stages
    from jaxdist.launch.plan.stages_shown import print_stages, tree

    if args.output:
        check_folder(args.output)
    found = find_stages(args)
    if args.output and found.plan:
        args.output.write_text(found.plan.to_json(), encoding="utf-8")
    if args.json:
        print_json(tree(found))
    else:
        print_stages(console(), found, args)
    return 0


def _add_question(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--profile",
        metavar="FILE",
        help="of one minibatch: graph.txt of PipeDream's profiler, or what "
        "`jaxdist profile NAME -o FILE` writes",
    )
    add("--workers", metavar="N", type=int, help="devices in all")
    add(
        "--levels",
        metavar="N,N",
        type=_numbers,
        help="devices of a group, groups of the next, ...: innermost first (one level)",
    )
    add(
        "--bandwidth",
        metavar="B[,B]",
        help="of a link: 1.25e9 bytes a second, 10gbit, 12.5GB/s; with --levels one "
        "for each, innermost first",
    )
    add(
        "--cluster",
        metavar="NAME|FILE",
        help="links, memory and speed of a cluster of docs/clusters.md, instead of "
        "--bandwidth and --levels",
    )
    add(
        "--memory",
        metavar="M",
        help="bytes of a device: 16e9, 16GB, 16GiB (the cluster's; else no limit)",
    )
    add(
        "--straight",
        action="store_true",
        help="one device a stage, no stage with replicas",
    )


def _add_costs(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--overlap",
        metavar="O",
        type=float,
        help="part of the shorter of compute and sum that is hidden: 0 none, 1 all (1)",
    )
    add(
        "--form",
        metavar="NAME",
        help="instead of --overlap: max (1), sum (0), or max_2m1, sums as published "
        "(max)",
    )
    add(
        "--cuts",
        metavar="WHERE",
        default="order",
        help="order: between neighbours in one order of the nodes; any: around any set "
        "of nodes that may come first (order)",
    )
    add(
        "--memory-model",
        metavar="NAME",
        help="in-flight: what the executor holds; upstream: the test of PipeDream's "
        "program, a minibatch less (in-flight)",
    )
    add(
        "--flops-rate",
        metavar="R",
        help="FLOP/s of a device, for blocks of our profiles without measured seconds",
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"not numbers with commas: {text}") from None
