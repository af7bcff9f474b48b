"""`jaxdist train EXPERIMENT`: run an experiment to its end, or go on with it."""

import os
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from jaxdist.core.run_record import Run

summary = "train an experiment; the same command again goes on with it"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, overrides, a plan, and what to profile."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--plan", metavar="FILE", help="run the plan of this file, or refuse"
    )
    parser.add_argument(
        "--profile",
        metavar="steps=A:B",
        help="write a jax.profiler trace of steps A to B into the run folder",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="the machine it runs on: predict the step, and say why it drifts",
    )
    parser.add_argument(
        "--adapt",
        action="store_true",
        help="with --cluster: where a link or host has changed, save, plan again, and "
        "go on under the new plan",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Train, write the report, and say what came of it."""
    import psutil

    started = psutil.Process().create_time()

    from jaxdist.launch.config.plan_file import check_plan_target, load_plan_overrides
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.distributed.environment import is_multi_process
    from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
    from jaxdist.launch.distributed.initialize import (
        WATCHED_HEARTBEAT_TIMEOUT_S,
        initialize,
    )
    from jaxdist.launch.distributed.preemption import PreemptionHandler
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.adapt.cluster_state import (
        apply_saved_plan,
        load_cluster_state,
        prepare_cluster_devices,
    )
    from jaxdist.launch.training.preflight import check_device_counts, check_settings
    from jaxdist.launch.training.profiler import parse_step_window

    if is_multi_process(os.environ):
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    mine = process_group()
    with PreemptionHandler(mine) as ends:
        with mine.primary_first("settings"):
            # One process is profiled: traces of several on a host have the same name.
            window = parse_step_window(args.profile) if mine.is_primary else None
            words = [
                *(load_plan_overrides(args.plan) if args.plan else ()),
                *args.overrides,
            ]
            resolved = resolve_config(args.experiment, words)
            machine = load_cluster_state(
                args.cluster, resolved, mine.size, is_adaptive=args.adapt
            )
            if args.plan:
                check_plan_target(
                    args.plan, resolved, machine.given if machine else None
                )
            resolved = apply_saved_plan(resolved, words, machine)
        check_settings(mine, resolved.config)
        prepared = prepare_cluster_devices(machine, resolved)

        check_device_counts(mine, prepared)

        # From here on jax is imported: it sees the devices that were just prepared.
        from jaxdist.launch.run_folder.folder import run_folder
        from jaxdist.launch.training.adapt.controller import adaptive_observer
        from jaxdist.launch.training.console_reporter import (
            ConsoleReporter,
            NullReporter,
        )
        from jaxdist.launch.training.profiler import trace_steps
        from jaxdist.launch.training.train import train

        trace = run_folder(resolved.config).traces
        shown = ConsoleReporter(quiet=args.json) if mine.is_primary else NullReporter()
        with (
            shown as terminal,
            adaptive_observer(
                machine,
                terminal,
                mine,
                start_time=started,
                request_stop=ends.request_stop,
            ) as onlooker,
        ):
            record, folder = train(
                resolved,
                prepared,
                onlooker,
                start_time=started,
                wrap_batches=lambda batches, start: trace_steps(
                    batches, start, window, trace
                ),
                should_stop=ends,
            )
        if mine.is_primary:
            _print_summary(record, folder.path, args.json)
    return EXIT_RESTART if record.status == "stopped" else 0


def _print_summary(run_record: "Run", folder: "Path", as_json: bool) -> None:
    """Write the report and print what came of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.run_folder.goodput import compute_goodput
    from jaxdist.launch.run_folder.jsonl import read_jsonl
    from jaxdist.launch.terminal.console import MAX_WIDTH, console, print_json
    from jaxdist.launch.terminal.run_header import wrap_hanging
    from jaxdist.launch.terminal.run_summary import run_summary

    write_report(folder)
    if as_json:
        print_json(asdict(run_record))
    else:
        console().print(run_summary(run_record, folder))
        found = compute_goodput(read_jsonl(RunFolder(folder).spans).rows)
        if found.attempts > 1:
            console().print()
            console().print(wrap_hanging(f"  {found.summary_line}", 12, MAX_WIDTH))
