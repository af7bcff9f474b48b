"""`jaxdist train EXPERIMENT`: run an experiment to its end, or go on with it."""

import os
from argparse import Namespace
from dataclasses import asdict

from jaxdist.launch.arguments import Parser, add_experiment, add_json

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
    add_json(parser)


def run(args: Namespace) -> int:
    """Train, write the report, and say what came of it."""
    import psutil

    started = psutil.Process().create_time()

    from jaxdist.launch.company import company
    from jaxdist.launch.devices import prepare_devices
    from jaxdist.launch.joined import join, was_placed
    from jaxdist.launch.planfile import plan_words
    from jaxdist.launch.profiling import read_window
    from jaxdist.launch.resolve import resolve

    if was_placed(os.environ):
        join()
    mine = company()
    with mine.in_turn("settings"):
        # One process is profiled: traces of several on a host have the same name.
        window = read_window(args.profile) if mine.leads else None
        words = [*(plan_words(args.plan) if args.plan else ()), *args.overrides]
        resolved = resolve(args.experiment, words)
    prepared = prepare_devices(resolved.config.plan, explicit=resolved.plan_is_explicit)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.launch.onlooker import Silent, Terminal
    from jaxdist.launch.profiling import profiled
    from jaxdist.launch.training import run_folder, train

    trace = run_folder(resolved).path / "profile"
    shown = Terminal(quiet=args.json) if mine.leads else Silent()
    with shown as onlooker:
        record, folder = train(
            resolved,
            prepared,
            onlooker,
            started=started,
            through=lambda batches, start: profiled(batches, start, window, trace),
        )
    if not mine.leads:
        return 0
    from jaxdist.launch.console import console, print_json
    from jaxdist.launch.report import write_report
    from jaxdist.launch.tables import closing

    write_report(folder.path)
    if args.json:
        print_json(asdict(record))
    else:
        console().print(closing(record, folder.path))
    return 0
