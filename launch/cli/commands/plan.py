"""`jaxdist plan`: layouts of an experiment ranked, or a network cut into stages."""

from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_what_if_option,
    check_output_folder,
)

_STAGE_OPTIONS: Final = (
    *("profile", "workers", "levels", "bandwidth", "straight", "overlap", "form"),
    "flops_rate",
)
"""Options that are for stages alone, and have no value unless they are given."""
_LAYOUT_OPTIONS: Final = (
    *("overrides", "devices", "top", "what_if", "lossy", "explain"),
    *("objective", "samples"),
)
"""The same of layouts."""

summary = "rank the layouts of an experiment on a cluster, or cut it into stages"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, a cluster and devices; or `stages`, a profile and links."""
    parser.usage = (
        "jaxdist plan EXPERIMENT [key=value ...] --cluster NAME|FILE "
        "--devices N[,N]\n"
        "       jaxdist plan stages --profile FILE --workers N --bandwidth B [options]"
    )
    parser.add_argument(
        "what",
        metavar="EXPERIMENT|stages",
        help="a name of `jaxdist experiments`: its layouts by predicted time; stages: "
        "where to cut a network, and how many devices each stage has",
    )
    parser.add_argument(
        "overrides",
        metavar="key.sub=value",
        nargs="*",
        default=(),
        help="of the experiment; `jaxdist config EXPERIMENT` lists the keys",
    )
    parser.add_argument(
        "--devices",
        metavar="N[,N]",
        type=_parse_numbers,
        help="of the cluster, for an experiment; several numbers are ranked together",
    )
    parser.add_argument(
        "--objective",
        metavar="NAME",
        help="what is made small: step, its seconds; cost, price or device-hours of a "
        "sample; budget, the time until --samples are trained on (step)",
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        help="samples to be trained on, epochs times those of an epoch: 90e6",
    )
    add_what_if_option(parser)
    parser.add_argument(
        "--top", metavar="N", type=int, help="layouts that are shown (10)"
    )
    parser.add_argument(
        "--lossy",
        metavar="WAY[,WAY]",
        help="ways of summing that lose something, to choose from as well: int8, "
        "power, ... of docs/compression.md; all",
    )
    parser.add_argument(
        "--explain",
        metavar="N",
        type=int,
        nargs="?",
        const=1,
        help="show the arithmetic of the Nth plan (1)",
    )
    _add_search_options(parser)
    _add_cost_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write the plan that `jaxdist train EXPERIMENT --plan FILE` runs",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Search, write and print."""
    if args.output:
        check_output_folder(args.output)
    if args.what == "stages":
        _reject_options(args, "stages", _LAYOUT_OPTIONS)
        return _plan_stages(args)
    _reject_options(args, args.what, _STAGE_OPTIONS)
    return _plan_layouts(args)


def _plan_layouts(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import plan_file_text
    from jaxdist.launch.planning.layout_search import search_layouts
    from jaxdist.launch.planning.layout_table import layout_tree, print_layouts
    from jaxdist.launch.terminal.console import console, print_json

    args.top = 10 if args.top is None else args.top
    found = search_layouts(args)
    if args.output:
        plan = found.ranking.plans[0].plan
        text = plan_file_text(plan, found.resolved, found.cluster)
        args.output.write_text(text, encoding="utf-8")
    if args.json:
        print_json(layout_tree(found, args.top, args.explain))
    else:
        print_layouts(console(), found, args)
    return 0


def _plan_stages(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import profiled_plan_file_text
    from jaxdist.launch.planning.stage_search import search_stages
    from jaxdist.launch.planning.stage_table import print_stages, stage_tree
    from jaxdist.launch.terminal.console import console, print_json

    found = search_stages(args)
    if args.output and found.plan:
        assert found.profile is not None
        text = profiled_plan_file_text(
            found.plan, found.profile, args.profile, found.cluster
        )
        args.output.write_text(text, encoding="utf-8")
    if args.json:
        print_json(stage_tree(found))
    else:
        print_stages(console(), found, args)
    return 0


def _reject_options(args: Namespace, what: str, names: tuple[str, ...]) -> None:
    """Refuse options of the other kind of plan."""
    for name in names:
        if getattr(args, name) not in (None, (), [], False):
            raise BadInput(
                f"plan {what} takes no {name.replace('_', '-')}",
                rule="an experiment has --cluster and --devices, stages have --profile "
                "and --workers, as --help says",
                values=f"{name} = {getattr(args, name)}",
                remedy=f"jaxdist plan {what} without it",
            )


def _add_search_options(parser: CommandParser) -> None:
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
        type=_parse_numbers,
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


def _add_cost_options(parser: CommandParser) -> None:
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


def _parse_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"not numbers with commas: {text}") from None
