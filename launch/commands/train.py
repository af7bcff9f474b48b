"""`jaxdist train EXPERIMENT`: run an experiment to its end, or go on with it."""

import os
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxdist.launch.arguments import Parser, add_experiment, add_json

if TYPE_CHECKING:
    from pathlib import Path

    from jaxdist.core.run import Run

summary = "train an experiment; the same command again goes on with it"


def add_arguments(parser: Parser) -> None:
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

    from jaxdist.launch.company import AGAIN, company
    from jaxdist.launch.joined import WATCHED_S, join
    from jaxdist.launch.machine import adapted, machine_of, prepare_on
    from jaxdist.launch.made_for import check_made_for
    from jaxdist.launch.placed import was_placed
    from jaxdist.launch.planfile import plan_words
    from jaxdist.launch.preempted import Preempted
    from jaxdist.launch.preflight import check_devices, check_settings
    from jaxdist.launch.profiling import read_window
    from jaxdist.launch.resolve import resolve

    if was_placed(os.environ):
        join(WATCHED_S)
    mine = company()
    with Preempted(mine) as ends:
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
        from jaxdist.launch.adapting import looked_at
        from jaxdist.launch.onlooker import Silent, Terminal
        from jaxdist.launch.profiling import profiled
        from jaxdist.launch.runs import folder_of
        from jaxdist.launch.training import train

        trace = folder_of(resolved.config).traces
        shown = Terminal(quiet=args.json) if mine.leads else Silent()
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
    from jaxdist.launch.console import WIDTH, console, print_json
    from jaxdist.launch.goodput import goodput
    from jaxdist.launch.lines import read_lines
    from jaxdist.launch.opening import hanging
    from jaxdist.launch.report import write_report
    from jaxdist.launch.runs import RunFolder
    from jaxdist.launch.tables import closing

    write_report(folder)
    if as_json:
        print_json(asdict(record))
    else:
        console().print(closing(record, folder))
        found = goodput(read_lines(RunFolder(folder).spans).rows)
        if found.sittings > 1:
            console().print()
            console().print(hanging(f"  {found.line}", 12, WIDTH))
