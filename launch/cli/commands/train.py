"""`jaxdist train EXPERIMENT`: run an experiment to its end, or go on with it."""

import os
import re
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import MAX_WIDTH, console, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from jaxdist.core.run_record import Run
    from jaxdist.launch.training.session import RunObserver

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

    from jaxdist.launch.distributed.environment import is_multi_process
    from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
    from jaxdist.launch.distributed.jax_processes import (
        WATCHED_HEARTBEAT_TIMEOUT_S,
        initialize,
    )
    from jaxdist.launch.distributed.preemption import PreemptionHandler
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.setup import JobRequest, settle

    # jax.distributed must be initialized before anything asks for devices.
    if is_multi_process(os.environ):
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    group = process_group()
    with PreemptionHandler(group) as preemption, ExitStack() as stack:
        with group.primary_first("profile"):
            # One process is profiled: traces of several on a host have the same name.
            window = _parse_step_window(args.profile) if group.is_primary else None
        request = JobRequest(
            experiment=args.experiment,
            overrides=args.overrides,
            plan_file=args.plan,
            cluster=args.cluster,
            adapts=args.adapt,
        )
        job = settle(request, group, for_training=True)

        # From here on jax is imported: it sees the devices that were just prepared.
        from jaxdist.launch.run_folder.folder import run_folder
        from jaxdist.launch.training.adapt.controller import AdaptationController
        from jaxdist.launch.training.console_reporter import (
            ConsoleReporter,
            NullReporter,
        )
        from jaxdist.launch.training.profiler import trace_steps
        from jaxdist.launch.training.train import train

        observer: RunObserver = NullReporter()
        if group.is_primary:
            observer = stack.enter_context(ConsoleReporter(quiet=args.json))
        if job.cluster is not None:
            observer = stack.enter_context(
                AdaptationController(
                    observer,
                    group,
                    job.cluster,
                    start_time=started,
                    request_stop=preemption.request_stop,
                )
            )
        traces = run_folder(job.config).traces
        record, folder = train(
            job,
            observer,
            start_time=started,
            wrap_batches=lambda batches, start: trace_steps(
                batches, start, window, traces
            ),
            should_stop=preemption,
        )
        # The progress line is taken away before anything else is printed.
        stack.close()
        if group.is_primary:
            _print_summary(record, folder.path, args.json)
    # A launcher starts a stopped run again; without one the same command goes on.
    return EXIT_RESTART if record.status == "stopped" else 0


def _parse_step_window(text: str | None) -> tuple[int, int] | None:
    """Read `steps=A:B`, the first and last step to profile, counted from 1.

    Raises:
        BadInput: another form, or a window without steps.

    >>> _parse_step_window("steps=10:15")
    (10, 15)
    """
    if text is None:
        return None
    found = re.fullmatch(r"steps=(\d+):(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise BadInput(
            f"no window of steps {text}",
            rule="--profile takes steps=FIRST:LAST, counted from 1",
            remedy="--profile steps=10:15",
        )
    return int(found[1]), int(found[2])


def _print_summary(run_record: "Run", folder: "Path", as_json: bool) -> None:
    """Write the report, and print the summary of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import RunFolder, read_jsonl
    from jaxdist.launch.run_folder.goodput import compute_goodput
    from jaxdist.launch.terminal.run_summary import run_summary, wrap_hanging

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
