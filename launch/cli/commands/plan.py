"""`jaxdist plan`: layouts of an experiment ranked, or a network cut into stages."""

import argparse
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import check_output, write_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_output_option,
    add_target_option,
    add_what_if_option,
    parse_int_list,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

if TYPE_CHECKING:
    from jaxdist.meshes.targets.target import Target

summary = "rank the layouts of an experiment, or cut a network in stages"
example = ""

_VERIFIED_PLANS: Final = 4
_ROUNDS: Final = 5


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, a cluster and devices; or `stages`, a profile and links."""
    layouts = parser.add_form(
        "layouts",
        "rank the layouts of an experiment by predicted time",
        example="resnet50 --cluster abci --devices 64",
        default=True,
    )
    explain = parser.add_form(
        "explain",
        "rank them, and show the arithmetic of one",
        example="digits --cluster testbed --devices 4 --rank 2",
    )
    verify = parser.add_form(
        "verify",
        "rank them, run the first ones here and rank those by what is seen",
        example="digits --cluster cpu-fake --devices 8 --first 4",
    )
    stages = parser.add_form(
        "stages",
        "cut a network into stages, and give each its devices",
        example="--profile digits.json --cluster pipedream-b --workers 8",
    )
    table = parser.add_form(
        "table",
        "rank the plans of a CSV file, and score the ranking where times are in it",
        example="plans.csv gpt2_small --cluster dgx-a100",
    )
    for form in (layouts, explain, verify):
        _add_search_options(form)
    explain.add_argument(
        "--rank",
        metavar="N",
        type=int,
        default=1,
        dest="explain",
        help="the Nth plan (1)",
    )
    verify.add_argument(
        "--first",
        metavar="N",
        type=int,
        default=_VERIFIED_PLANS,
        dest="verify",
        help="how many plans are run for some steps on the devices that are here, or "
        f"compiled for their --target ({_VERIFIED_PLANS})",
    )
    verify.add_argument(
        "--rounds",
        metavar="N",
        type=int,
        default=_ROUNDS,
        help=f"times that each plan's steps are timed ({_ROUNDS})",
    )
    verify.add_argument(
        "--recalibrate",
        metavar="FILE",
        type=Path,
        help="write the cluster with speeds that explain the steps that were seen",
    )
    # Before these were forms they were options of the ranking.
    add, hidden = layouts.add_argument, argparse.SUPPRESS
    add("--explain", type=int, nargs="?", const=1, help=hidden)
    add("--verify", type=int, help=hidden)
    add("--rounds", type=int, default=_ROUNDS, help=hidden)
    for form in (layouts, explain, stages, table):
        form.set_defaults(recalibrate=None)
    explain.set_defaults(verify=None, rounds=_ROUNDS)
    verify.set_defaults(explain=None)
    _add_stage_options(stages)
    _add_table_options(table)
    for form in (layouts, explain, verify, stages, table):
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


def _add_search_options(form: CommandParser) -> None:
    """Take an experiment, and what its layouts are searched and ranked by."""
    add_experiment_arguments(form)
    add = form.add_argument
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
    add_target_option(form)
    add_what_if_option(form)
    add("--top", metavar="N", type=int, default=10, help="layouts that are shown (10)")
    add(
        "--compressors",
        metavar="NAME[,NAME]",
        help="lossy compressors to choose from as well: int8, power, ... of "
        "docs/compression.md; all",
    )


def _add_table_options(form: CommandParser) -> None:
    """Take a table of plans, an experiment, and whose program runs them."""
    add = form.add_argument
    add(
        "table",
        metavar="TABLE",
        type=Path,
        help="CSV file, a plan a row: tensor, data, pipe, and maybe microbatch, cuts, "
        "seconds, and keys of the configuration",
    )
    add_experiment_arguments(form)
    add_what_if_option(form)
    add(
        "--program",
        metavar="NAME",
        default="jaxdist",
        help="whose program runs the plans: jaxdist, or megatron for GPT-2 (jaxdist)",
    )
    add(
        "--rates",
        metavar="FILE",
        type=Path,
        help="what `jaxdist calibrate fit` wrote, for --program megatron",
    )
    add(
        "--traced",
        action="store_true",
        help="read the memory off each plan's own program, seconds to a minute a plan",
    )
    add("--top", metavar="N", type=int, default=10, help="rows that are shown (10)")


def _add_stage_options(form: CommandParser) -> None:
    """Take a profile, links, and what the partitioner assumes."""
    add = form.add_argument
    add("file", metavar="FILE", type=Path, nargs="?", help="as --profile FILE")
    add(
        "--profile",
        metavar="FILE",
        type=Path,
        help="of one minibatch: graph.txt of PipeDream's profiler, a graph of Piper's, "
        "or what `jaxdist profile NAME -o FILE` writes",
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
        help="order: between neighbours in one order of the nodes; any: around any set "
        "of nodes that may come first (order; of Piper's graphs any, if they are few)",
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
    add(
        "--microbatches",
        metavar="N",
        type=int,
        help="of a batch, instead of what a graph of Piper's says",
    )


def run(args: Namespace) -> int:
    """Search, write and print."""
    # A search takes up to minutes: what could not be written is refused before it.
    if args.output:
        check_output(args.output, force=args.force)
    if args.recalibrate:
        check_output(args.recalibrate, force=args.force, option="--recalibrate")
    if args.action == "stages":
        return _plan_stages(args)
    if args.action == "table":
        return _plan_table(args)

    from jaxdist.launch.config.plan_file import plan_file_text
    from jaxdist.launch.devices.jax_environment import target_answer_folder
    from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts
    from jaxdist.launch.planning.layout_table import print_layouts
    from jaxdist.launch.planning.verify import (
        VerificationQuery,
        compile_plans,
        recalibrate_by_steps,
        run_plans,
    )

    verifying = query_from(args, VerificationQuery)
    target = _take_target(args) if args.target else None
    if verifying.verify and target is not None:
        from jaxdist.meshes.targets.compilers import prepare_compilation

        prepare_compilation(target)
    found = search_layouts(query_from(args, PlanQuery))
    if verifying.verify:
        if target is None:
            seen = run_plans(found, verifying)
        else:
            kept = target_answer_folder(os.environ)
            seen = compile_plans(found, verifying, target, kept)
        found = replace(found, verification=seen)
        if verifying.recalibrate is not None:
            better = recalibrate_by_steps(found.cluster, seen).to_json()
            write_output(verifying.recalibrate, better, force=args.force)
    if args.output:
        text = plan_file_text(found.best_plan, found.resolved, found.cluster)
        write_output(args.output, text, force=args.force)
    print_json(found.to_dict()) if args.json else print_layouts(console(), found)
    if args.recalibrate and not args.json:
        console().print(
            f"  written  {args.recalibrate}, fitted to the steps that ran; "
            f"--cluster {args.recalibrate} plans by it",
            soft_wrap=True,
        )
    if args.target and not args.json:
        words = " ".join((args.experiment, *args.overrides))
        file = args.output or "plan.json"
        again = f"jaxdist compile {words} --plan {file} --target {args.target}"
        print_next_commands(console(), again)
    return 0


def _take_target(args: Namespace) -> "Target":
    """Take the cluster and the devices of a target."""
    from jaxdist.meshes.targets.target import parse_target

    target = parse_target(args.target)
    if args.cluster or args.devices:
        raise BadInput(
            "a target has a cluster and a number of devices",
            rule="--target stands alone, or --cluster with --devices",
            values=f"--target {args.target} and "
            f"{'--cluster' if args.cluster else '--devices'}",
            remedy=f"--target {args.target}",
        )
    if args.recalibrate:
        raise BadInput(
            "compiled plans recalibrate nothing",
            rule="speeds of a cluster are fitted to steps that ran",
            values=f"--recalibrate {args.recalibrate} --target {args.target}",
            remedy="--recalibrate with --cluster, on a machine of that cluster",
        )
    args.cluster, args.devices = target.chip.cluster, (target.devices,)
    return target


def _plan_stages(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import profiled_plan_file_text
    from jaxdist.launch.planning.option_stages import (
        OptionSearchResult,
        print_option_stages,
    )
    from jaxdist.launch.planning.stage_search import StagePlanQuery, search_stages
    from jaxdist.launch.planning.stage_table import print_stages

    if args.file is not None:
        if args.profile not in (None, args.file):
            raise BadInput(
                "there are two profiles",
                rule="a profile is FILE, or --profile FILE",
                values=f"{args.file}, --profile {args.profile}",
                remedy=f"jaxdist plan stages {args.file}",
            )
        args.profile = args.file
    found = search_stages(query_from(args, StagePlanQuery))
    if isinstance(found, OptionSearchResult):
        if args.json:
            print_json(found.to_dict())
        else:
            print_option_stages(console(), found)
        return 0
    # A profile of PipeDream's has no plan, and was refused with -o.
    if args.output and found.plan:
        assert found.profile is not None
        text = profiled_plan_file_text(
            found.plan, found.profile, str(args.profile), found.cluster
        )
        write_output(args.output, text, force=args.force)
    print_json(found.to_dict()) if args.json else print_stages(console(), found)
    return 0


def _plan_table(args: Namespace) -> int:
    from jaxdist.launch.config.plan_file import plan_file_text
    from jaxdist.launch.planning.plan_table import (
        TableQuery,
        print_table_ranking,
        rank_table,
    )

    found = rank_table(query_from(args, TableQuery))
    first = found.plans[0]
    if args.output:
        if not first.fits or first.plan is None or first.resolved is None:
            raise BadInput(
                f"no plan of {args.table} can be run",
                rule="-o writes the first plan that fits",
                values=f"row {first.row.number}: {first.reason}",
                remedy="a larger --memory, or other plans",
            )
        text = plan_file_text(first.plan, first.resolved, found.cluster)
        write_output(args.output, text, force=args.force)
    print_json(found.to_dict()) if args.json else print_table_ranking(console(), found)
    return 0
