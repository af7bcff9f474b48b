"""`jaxdist plan`: layouts of an experiment ranked, or a network cut into stages."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.files import check_output, write_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_output_option,
    add_what_if_option,
    parse_int_list,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "rank the layouts of an experiment on a cluster, or cut it into stages"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, a cluster and devices; or `stages`, a profile and links."""
    layouts = parser.add_form(
        "layouts",
        "the layouts of an experiment, by predicted time",
        example="resnet50 --cluster abci --devices 64",
        default=True,
    )
    add_experiment_arguments(layouts)
    add = layouts.add_argument
    add(
        "--devices",
        metavar="N[,N]",
        type=parse_int_list,
        help="of the cluster; several numbers are ranked together",
    )
    add(
        "--objective",
        metavar="NAME",
        help="what is minimised: step, its seconds; cost, price or device-hours of a "
        "sample; budget, the time until --samples are trained on (step)",
    )
    add(
        "--samples",
        metavar="N",
        help="samples to be trained on, epochs times those of an epoch: 90e6",
    )
    add_what_if_option(layouts)
    add("--top", metavar="N", type=int, default=10, help="layouts that are shown (10)")
    add(
        "--compressors",
        metavar="NAME[,NAME]",
        help="lossy compressors to choose from as well: int8, power, ... of "
        "docs/compression.md; all",
    )
    add(
        "--explain",
        metavar="N",
        type=int,
        nargs="?",
        const=1,
        help="show the arithmetic of the Nth plan (1)",
    )

    stages = parser.add_form(
        "stages", "where to cut a network, and how many devices each stage has"
    )
    add = stages.add_argument
    add(
        "--profile",
        metavar="FILE",
        type=Path,
        help="of one minibatch: graph.txt of PipeDream's profiler, or what "
        "`jaxdist profile NAME -o FILE` writes",
    )
    add("--workers", metavar="N", type=int, help="devices in all")
    add(
        "--levels",
        metavar="N,N",
        type=parse_int_list,
        help="devices of a group, groups of the next, ...: innermost first (one level)",
    )
    add(
        "--bandwidth",
        metavar="B[,B]",
        help="of a link: 1.25e9 bytes a second, 10gbit, 12.5GB/s; with --levels one "
        "for each, innermost first",
    )
    add(
        "--straight",
        action="store_true",
        help="one device a stage, no stage with replicas",
    )
    add(
        "--overlap",
        metavar="O",
        type=float,
        help="part of the shorter of compute and sum that is hidden: 0 none, 1 all (1)",
    )
    add(
        "--cost-convention",
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
    for form in (layouts, stages):
        form.add_argument(
            "--cluster",
            metavar="NAME|FILE",
            help="links, memory and speed of a cluster of docs/clusters.md",
        )
        form.add_argument(
            "--memory",
            metavar="M",
            help="bytes of a device: 16e9, 16GB, 16GiB (the cluster's; else no limit)",
        )
        add_output_option(
            form, "write the plan that `jaxdist train EXPERIMENT --plan FILE` runs"
        )
        add_json_option(form)


def run(args: Namespace) -> int:
    """Search, write and print."""
    # A search takes up to minutes: what could not be written is refused before it.
    if args.output:
        check_output(args.output, force=args.force)
    return _plan_stages(args) if args.action == "stages" else _plan_layouts(args)


def _plan_layouts(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import plan_file_text
    from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts
    from jaxdist.launch.planning.layout_table import print_layouts

    found = search_layouts(query_from(args, PlanQuery))
    if args.output:
        plan = found.ranking.plans[0].plan
        text = plan_file_text(plan, found.resolved, found.cluster)
        write_output(args.output, text, force=args.force)
    print_json(found.to_dict()) if args.json else print_layouts(console(), found)
    return 0


def _plan_stages(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import profiled_plan_file_text
    from jaxdist.launch.planning.stage_search import StagePlanQuery, search_stages
    from jaxdist.launch.planning.stage_table import print_stages

    found = search_stages(query_from(args, StagePlanQuery))
    # A profile of PipeDream's has no plan, and was refused with -o.
    if args.output and found.plan:
        assert found.profile is not None
        text = profiled_plan_file_text(
            found.plan, found.profile, str(args.profile), found.cluster
        )
        write_output(args.output, text, force=args.force)
    print_json(found.to_dict()) if args.json else print_stages(console(), found)
    return 0
