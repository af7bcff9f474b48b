"""`jaxdist train EXPERIMENT`: run an experiment to its end, or go on with it."""

import os
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import CommandParser, add_experiment, add_json

if TYPE_CHECKING:
    from pathlib import Path

    from jaxdist.core.run_record import Run

summary = "train an experiment; the same command again goes on with it"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, overrides, a plan, and what to profile."""
    add_experiment(parser)
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
    add_json(parser)


def run(args: Namespace) -> int:
    """Train, write the report, and say what came of it."""
    import psutil

    started = psutil.Process().create_time()

    from jaxdist.launch.config.plan_file import check_made_for, plan_words
    from jaxdist.launch.config.resolve import resolve
    from jaxdist.launch.distributed.environment import was_placed
    from jaxdist.launch.distributed.initialize import WATCHED_S, join
    from jaxdist.launch.distributed.preemption import PreemptionHandler
    from jaxdist.launch.distributed.process_group import AGAIN, process_group
    from jaxdist.launch.training.adapt.cluster_state import (
        adapted,
        machine_of,
        prepare_on,
    )
    from jaxdist.launch.training.preflight import check_devices, check_settings
    from jaxdist.launch.training.profiler import read_window

    if was_placed(os.environ):
        join(WATCHED_S)
    mine = process_group()
    with PreemptionHandler(mine) as ends:
        with mine.in_turn("settings"):
            # One process is profiled: traces of several on a host have the same name.
            window = read_window(args.profile) if mine.leads else None
            words = [*(plan_words(args.plan) if args.plan else ()), *args.overrides]
            resolved = resolve(args.experiment, words)
            machine = machine_of(args.cluster, resolved, mine.count, adapts=args.adapt)
            if args.plan:
                check_made_for(args.plan, resolved, machine.given if machine else None)
            resolved = adapted(resolved, words, machine)
        check_settings(mine, resolved.config)
        prepared = prepare_on(machine, resolved)

        check_devices(mine, prepared)

        # From here on jax is imported: it sees the devices that were just prepared.
        from jaxdist.launch.run_folder.folder import folder_of
        from jaxdist.launch.training.adapt.controller import looked_at
        from jaxdist.launch.training.console_reporter import (
            ConsoleReporter,
            NullReporter,
        )
        from jaxdist.launch.training.profiler import profiled
        from jaxdist.launch.training.train import train

        trace = folder_of(resolved.config).traces
        shown = ConsoleReporter(quiet=args.json) if mine.leads else NullReporter()
        with (
            shown as terminal,
            looked_at(
                machine, terminal, mine, started=started, ends=ends.ask
            ) as onlooker,
        ):
            record, folder = train(
                resolved,
                prepared,
                onlooker,
                started=started,
                through=lambda batches, start: profiled(batches, start, window, trace),
                ends=ends,
            )
        if mine.leads:
            _tell(record, folder.path, args.json)
    return AGAIN if record.status == "stopped" else 0


def _tell(record: "Run", folder: "Path", as_json: bool) -> None:
    """Write the report and print what came of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.run_folder.goodput import goodput
    from jaxdist.launch.run_folder.jsonl import read_lines
    from jaxdist.launch.terminal.console import WIDTH, console, print_json
    from jaxdist.launch.terminal.run_header import hanging
    from jaxdist.launch.terminal.run_summary import closing

    write_report(folder)
    if as_json:
        print_json(asdict(record))
    else:
        console().print(closing(record, folder))
        found = goodput(read_lines(RunFolder(folder).spans).rows)
        if found.sittings > 1:
            console().print()
            console().print(hanging(f"  {found.line}", 12, WIDTH))
