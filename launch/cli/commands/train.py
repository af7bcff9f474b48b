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
from jaxdist.launch.terminal.console import MAX_WIDTH, console, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from jaxdist.core.run_record import Run

summary = "train an experiment; the same command again goes on with it"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, overrides, a plan, and what to profile."""
    add_experiment_arguments(parser)
    add = parser.add_argument
    add("--plan", metavar="FILE", help="run the plan of this file, or refuse")
    add(
        "--profile",
        metavar="steps=A:B",
        help="write a jax.profiler trace of steps A to B into the run folder",
    )
    add(
        "--cluster",
        metavar="NAME|FILE",
        help="the machine it runs on: predict the step, and say why it drifts",
    )
    add(
        "--adapt",
        action="store_true",
        help="with --cluster: where a link or host has changed, save, plan again, and "
        "go on under the new plan",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Train, write the report, and say what came of it."""
    import psutil

    # The time to the first step counts from the start of the process, imports included.
    started = psutil.Process().create_time()

    from jaxdist.launch.config.plan_file import check_plan_target, load_plan_overrides
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.distributed.environment import is_multi_process
    from jaxdist.launch.distributed.initialize import (
        WATCHED_HEARTBEAT_TIMEOUT_S,
        initialize,
    )
    from jaxdist.launch.distributed.preemption import PreemptionHandler
    from jaxdist.launch.distributed.process_group import EXIT_RESTART, process_group
    from jaxdist.launch.training.adapt.cluster_state import (
        apply_saved_plan,
        load_cluster_state,
        prepare_cluster_devices,
    )
    from jaxdist.launch.training.preflight import check_device_counts, check_settings
    from jaxdist.launch.training.profiler import parse_step_window

    # jax.distributed must be initialized before anything asks for devices.
    if is_multi_process(os.environ):
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    mine = process_group()
    with PreemptionHandler(mine) as ends:
        # Process 0 reads the settings first: what it refuses is said once, and data
        # that is downloaded is there for the others. Devices must not be counted
        # inside, since jax counts them in all processes at once.
        with mine.primary_first("settings"):
            # One process is profiled: traces of several on a host have the same name.
            window = parse_step_window(args.profile) if mine.is_primary else None
            # Overrides stand behind the plan's: what is typed wins over the file.
            words = [*(load_plan_overrides(args.plan) if args.plan else ())]
            words += args.overrides
            resolved = resolve_config(args.experiment, words)
            machine = load_cluster_state(
                args.cluster, resolved, mine.size, is_adaptive=args.adapt
            )
            if args.plan:
                given = machine.given if machine else None
                check_plan_target(args.plan, resolved, given)
            # A run that has planned again goes on under its own plan.
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

        # Only the primary prints; each process has the folder, to write its own traces.
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
            ) as observer,
        ):
            record, folder = train(
                resolved,
                prepared,
                observer,
                start_time=started,
                wrap_batches=lambda batches, start: trace_steps(
                    batches, start, window, trace
                ),
                should_stop=ends,
            )
        if mine.is_primary:
            _print_summary(record, folder.path, args.json)
    # A launcher starts a stopped run again; without one the same command goes on.
    return EXIT_RESTART if record.status == "stopped" else 0


def _print_summary(run_record: "Run", folder: "Path", as_json: bool) -> None:
    """Write the report, and print the summary of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.run_folder.goodput import compute_goodput
    from jaxdist.launch.run_folder.jsonl import read_jsonl
    from jaxdist.launch.terminal.run_header import wrap_hanging
    from jaxdist.launch.terminal.run_summary import run_summary

    # Written before the summary, which names it.
    write_report(folder)
    if as_json:
        print_json(asdict(run_record))
    else:
        console().print(run_summary(run_record, folder))
        found = compute_goodput(read_jsonl(RunFolder(folder).spans).rows)
        # Of a run that was never interrupted it would say nothing new.
        if found.attempts > 1:
            console().print()
            console().print(wrap_hanging(f"  {found.summary_line}", 12, MAX_WIDTH))
