"""A training from the command line: begun, gone on with, or found to be finished."""

import os
import re
import sys
from argparse import Namespace
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import CommandParser, add_json_option, add_trust_option
from jaxdist.launch.terminal.console import console, print_json

if TYPE_CHECKING:
    from jaxdist.core.run_record import Run
    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.tracking.run_tracking import RunTracking
    from jaxdist.launch.training.job.request import JobRequest, ResolvedRequest
    from jaxdist.launch.training.session import RunObserver


def add_training_options(parser: CommandParser) -> None:
    """Add what a training takes beside its configuration; a run stores it."""
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
        "continue under the new plan",
    )
    add(
        "--change",
        action="store_true",
        help="of a run that is resumed, change what its result follows from as it is "
        "typed here: epochs=40 --change",
    )
    add_trust_option(parser)
    add_json_option(parser)


def training_request(
    args: Namespace, experiment: str, run: "RunFolder | None" = None
) -> "JobRequest":
    """Return what the words of a training ask for.

    Args:
        args: parsed words.
        experiment: name of an experiment, or path of a file that has one.
        run: the run that is resumed; None: that of the configuration, if there is one.
    """
    from jaxdist.launch.training.job.request import JobRequest

    return JobRequest(
        experiment=experiment,
        overrides=args.overrides,
        plan_file=args.plan,
        cluster=args.cluster,
        adapts=args.adapt,
        profile=args.profile,
        run=run,
        trust=args.trust,
        accepts_changes=args.change,
        command=getattr(args, "command_line", ()),
    )


def run_training(request: "JobRequest", *, as_json: bool) -> int:
    """Train, write the report, and say what came of it; returns the exit code.

    Args:
        request: what was asked for.
        as_json: whether one JSON object is printed, and nothing else.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    import psutil

    # The time to the first step counts from the start of the process, imports included.
    started = psutil.Process().create_time()

    from jaxdist.launch.distributed.environment import RANK_VAR, is_multi_process
    from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
    from jaxdist.launch.distributed.jax_processes import (
        WATCHED_HEARTBEAT_TIMEOUT_S,
        initialize,
    )
    from jaxdist.launch.distributed.preemption import PreemptionHandler
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.terminal.progress_bar import StageProgress
    from jaxdist.launch.training.job.request import resolve_request

    # Trackers end last: they keep the report too.
    with ExitStack() as tracked, ExitStack() as stack:
        stages = StageProgress(console(error=True))
        # Said at once: devices, samples and a compiled step take their time. What is
        # wrong is told below, by one process of all.
        if os.environ.get(RANK_VAR, "0") == "0":
            with suppress(BadInput):
                asked = resolve_request(request, for_training=True)
                if not asked.is_finished:
                    _print_opening(asked)
                    stack.enter_context(stages)
        # jax.distributed must be initialized before anything asks for devices.
        if is_multi_process(os.environ):
            stages.begin("waiting for all processes")
            initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
        group = process_group()
        preemption = stack.enter_context(PreemptionHandler(group))
        with group.primary_first("request"):
            asked = resolve_request(request, for_training=True)
            # One process is profiled: traces of several on a host have the same name.
            profiled = asked.options.profile if group.is_primary else None
            window = parse_step_window(profiled)
            tracking = tracked.enter_context(_open_tracking(asked))
        if group.broadcast("finished", asked.is_finished):
            if group.is_primary:
                _print_finished(asked, as_json)
            return 0
        stages.begin("preparing devices and samples")
        from jaxdist.launch.training.job.setup import settle

        job = settle(asked, group, for_training=True)

        # From here on jax is imported: it sees the devices that were just prepared.
        from jaxdist.launch.training.adapt.controller import AdaptationController
        from jaxdist.launch.training.console_reporter import (
            ConsoleReporter,
            NullReporter,
        )
        from jaxdist.launch.training.profiler import trace_steps
        from jaxdist.launch.training.train import train

        reporter: ConsoleReporter | NullReporter = NullReporter()
        if group.is_primary:
            reporter = ConsoleReporter(quiet=as_json, stages=stages)
        stack.enter_context(reporter)
        observer: RunObserver = reporter
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

        record, folder = train(
            job,
            observer,
            tracking=tracking,
            start_time=started,
            wrap_batches=lambda batches, start: trace_steps(
                batches, start, window, asked.folder.traces
            ),
            should_stop=preemption,
            set_abort=partial(setattr, preemption, "on_abort"),
            on_phase=reporter.on_phase,
        )
        # The progress line is taken away before anything else is printed.
        stack.close()
        if group.is_primary:
            _print_summary(record, folder, as_json)
        tracking.end(record, folder)
    # A launcher starts a stopped run again; without one it is resumed by hand.
    return EXIT_RESTART if record.status == "stopped" else 0


def _open_tracking(asked: "ResolvedRequest") -> "RunTracking":
    """Return the trackers that a run asks for; process 0 alone has any.

    Raises:
        BadInput: a package that one needs is not installed.
    """
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.tracking.registry import make_trackers
    from jaxdist.launch.tracking.run_tracking import RunTracking

    is_told = process_group().is_primary and not asked.is_finished
    return RunTracking(make_trackers(asked.resolved.config.track if is_told else ()))


def parse_step_window(text: str | None) -> tuple[int, int] | None:
    """Read `steps=A:B`, the first and last step to profile, counted from 1.

    Raises:
        BadInput: another form, or a window without steps.

    >>> parse_step_window("steps=10:15")
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


def _print_opening(asked: "ResolvedRequest") -> None:
    """Say what begins, and what is changed of a run that is resumed.

    It may still be refused, so standard output stays empty.
    """
    from jaxdist.launch.run_folder.lockfile import result_changes
    from jaxdist.launch.terminal.run_summary import pluralize, wrap_hanging

    config = asked.resolved.config
    attempt = 1 if asked.stored is None else len(asked.stored.attempts or (1,)) + 1
    how = "new" if asked.stored is None else f"resumed, attempt {attempt}"
    what = f"{config.model.name} on {config.data.name}, {config.plan.title}"
    length = pluralize(config.epochs, "epoch")
    lines = [f"train     {asked.folder.path} ({how}): {what}, {length}"]
    asked_for = result_changes(asked.changes)
    lines += [f"change:   {change.text}" for change in asked_for]
    others = [change for change in asked.changes if change not in asked_for]
    # Where the files are is in the line above.
    lines += [
        f"  set     {change.text}" for change in others if change.key != "run.dir"
    ]
    lines += [f"warn:     {remark}" for remark in asked.remarks]
    out = console(error=True)
    for line in lines:
        out.print(wrap_hanging(line, 10, out.width), crop=False)


def _print_finished(asked: "ResolvedRequest", as_json: bool) -> None:
    """Say that a run has ended, with what came of it and what to do next."""
    from jaxdist.core.run_record import Run
    from jaxdist.launch.run_folder.folder import read_run_file
    from jaxdist.launch.run_folder.next_commands import (
        cli_resume_command,
        is_of_program,
    )
    from jaxdist.launch.terminal.run_summary import finished_text, wrap_hanging

    folder = asked.folder
    record = read_run_file(folder.summary, Run.from_json)
    if as_json:
        print_json(asdict(record))
        return
    out = console()
    text = finished_text(record, folder.name)
    out.print(wrap_hanging(text, 10, out.width), crop=False)
    out.print(f"\n  report   {folder.report}", soft_wrap=True)
    if asked.stored is not None and is_of_program(asked.stored):
        return
    longer = f"epochs={2 * asked.resolved.config.epochs:g} --change"
    out.print(f"  longer   {cli_resume_command(folder)} {longer}", soft_wrap=True)
    again = f"jaxdist train {asked.resolved.experiment} run.name={folder.name}-2"
    out.print(f"  another  {again}", soft_wrap=True)


def _print_summary(run_record: "Run", folder: "RunFolder", as_json: bool) -> None:
    """Write the report, and print the summary of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import read_jsonl
    from jaxdist.launch.run_folder.goodput import compute_goodput
    from jaxdist.launch.run_folder.next_commands import (
        cli_resume_command,
        suggest_commands,
    )
    from jaxdist.launch.terminal.run_summary import run_summary, wrap_hanging

    # Written before the summary, which names it.
    write_report(folder.path)
    if as_json:
        print_json(asdict(run_record))
        # Standard output has the one object; who stopped the run reads the other.
        if run_record.status == "stopped":
            sys.stderr.write(f"resume it with: {cli_resume_command(folder)}\n")
        return
    again = suggest_commands(run_record, folder)
    # Not cropped: a long path in a command leaves the line break to the terminal.
    console().print(run_summary(run_record, folder.path, again), crop=False)
    found = compute_goodput(read_jsonl(folder.spans).rows)
    # Of a run that was never interrupted it would say nothing new.
    if found.attempts > 1:
        console().print()
        out = console()
        out.print(wrap_hanging(f"  {found.summary_line}", 12, out.width))
