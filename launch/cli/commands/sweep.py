"""`jaxdist sweep EXPERIMENT optim.lr=1e-3..1e-1:log`: search for hyper-parameters."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput, RetryableError
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

if TYPE_CHECKING:
    from jaxdist.launch.sweep.space import SearchSpace
    from jaxdist.launch.sweep.study import SweepSettings, TrialRecord

summary = "train with many hyper-parameters: draw, prune and rank trials"
example = "digits optim.lr=1e-3..1e-1:log epochs=1,2 --trials 5"

_SHOWN: Final = 20
"""Trials in the table; the page has all."""


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, what is varied, and how."""
    parser.takes_keys = True
    add = parser.add_argument
    add(
        "experiment",
        metavar="EXPERIMENT",
        help="a name of `jaxdist experiments`, or a file my_experiment.py; with "
        "--show the name of a sweep",
    )
    add(
        "words",
        metavar="key=LOW..HIGH[:log]|A,B|VALUE",
        nargs="*",
        default=(),
        help="a range or a list is drawn from for each trial; a value holds for all",
    )
    add("--trials", metavar="N", type=int, default=20, help="trials in all (20)")
    add("--name", help="folder of the sweep inside --dir (EXPERIMENT-sweep)")
    add("--workers", metavar="N", type=int, default=1, help="trials at once (1)")
    add(
        "--metric",
        choices=("test_loss", "accuracy"),
        default="test_loss",
        help="what is compared: the loss on held-out samples, or right answers",
    )
    add(
        "--pruner",
        choices=("median", "none"),
        default="median",
        help="median: end a trial that is worse than the median of the others (median)",
    )
    add("--seed", metavar="S", type=int, default=0, help="source of what is drawn (0)")
    add("--show", action="store_true", help="show a sweep, and start nothing")
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Make the trials that are not there yet, and rank all of them.

    Raises:
        BadInput: a range, a value or an option that cannot be; nothing was written.
    """
    from jaxdist.launch.distributed.exit_codes import EXIT_FAILED
    from jaxdist.launch.launchers.processes.group import SignalExit
    from jaxdist.launch.run_folder.folder import RunFolder, check_writable, is_locked
    from jaxdist.launch.sweep.html_page import write_page
    from jaxdist.launch.sweep.runner import print_trial, run_sweep
    from jaxdist.launch.sweep.space import parse_space
    from jaxdist.launch.sweep.study import (
        FINAL_STATES,
        SweepSettings,
        check_optuna,
        check_sweep,
        open_study,
        read_settings,
        read_trials,
    )

    if args.show:
        check_optuna()
        folder = Path(args.dir, args.name or args.experiment)
        settings = read_settings(folder)
        space = parse_space(settings.experiment, settings.words)
        is_running = is_locked(RunFolder(folder))
        trials = read_trials(open_study(folder, settings))
        if not is_running:
            trials = tuple(
                replace(each, state="stopped") if each.state == "running" else each
                for each in trials
            )
        _print_sweep(args, folder, settings, space, trials)
        ended = sum(each.state in FINAL_STATES for each in trials)
        if not (is_running or args.json) and ended < settings.trials:
            console().print(
                f"stopped after {ended} of {settings.trials} trials; resume it with "
                f"{_command(folder, settings)}",
                soft_wrap=True,
            )
        return 0
    if args.workers < 1:
        raise BadInput(
            "a sweep needs a worker",
            rule="--workers is above zero",
            values=f"--workers {args.workers}",
            remedy="--workers 1",
        )
    settings = SweepSettings(
        experiment=args.experiment,
        words=tuple(args.words),
        trials=args.trials,
        metric=args.metric,
        pruner=args.pruner,
        seed=args.seed,
    )
    # Of `file.py:function` the file alone: a folder has no colon.
    name = args.name or f"{Path(args.experiment.partition(':')[0]).stem}-sweep"
    folder = Path(args.dir, name)
    space = check_sweep(folder, settings)
    check_writable(folder, key="--dir")

    def on_trial(trial: "TrialRecord", trials: "tuple[TrialRecord, ...]") -> None:
        # Written after each: a browser follows the sweep.
        write_page(folder, settings, space, trials)
        print_trial(trial, trials, settings)

    try:
        trials = run_sweep(
            folder, settings, space, workers=args.workers, on_trial=on_trial
        )
    except SignalExit as end:
        raise RetryableError(
            f"the sweep in {folder} was asked to end; the same command resumes it"
        ) from end
    write_page(folder, settings, space, trials)
    _print_sweep(args, folder, settings, space, trials)
    return 0 if any(each.state == "done" for each in trials) else EXIT_FAILED


def _command(folder: Path, settings: "SweepSettings") -> str:
    """Return what is typed to resume a sweep."""
    first = type(settings)(experiment=settings.experiment, words=settings.words)
    options = [
        text
        for key in ("trials", "metric", "pruner", "seed")
        if (value := getattr(settings, key)) != getattr(first, key)
        for text in (f"--{key}", str(value))
    ]
    place = ["--name", folder.name]
    if str(folder.parent) != "runs":
        place += ["--dir", str(folder.parent)]
    return shlex.join(
        ["jaxdist", "sweep", settings.experiment, *settings.words, *options, *place]
    )


def _print_sweep(
    args: Namespace,
    folder: Path,
    settings: "SweepSettings",
    space: "SearchSpace",
    trials: "Sequence[TrialRecord]",
) -> None:
    """Print the trials, ranked, and what to do with the best."""
    from jaxdist.launch.sweep.html_page import headline, keys, number_keys, table_rows
    from jaxdist.launch.sweep.study import trial_overrides

    if args.json:
        found = [{**asdict(each), "run": str(folder / each.name)} for each in trials]
        print_json({**asdict(settings), "folder": str(folder), "found": found})
        return
    out = console()
    numbers = ("rank", settings.metric, *number_keys(space))
    heads = ("rank", "trial", "state", settings.metric, *keys(space))
    table = make_table(*heads, right=numbers)
    rows = table_rows(space, trials)
    for row in rows[:_SHOWN]:
        table.add_row(*row)
    print_table(out, table)
    if len(rows) > _SHOWN:
        out.print(f"  {len(rows) - _SHOWN} more in {folder / 'sweep.html'}\n")
    for each in trials:
        if each.state == "failed":
            out.print(f"  failed   {each.name}: {each.reason}", soft_wrap=True)
    out.print(f"{headline(settings, trials)}", soft_wrap=True)
    out.print(f"\n  page     {folder / 'sweep.html'}", soft_wrap=True)
    if trials and trials[0].state == "done":
        best = trials[0]
        words = shlex.join(trial_overrides(space, best.params))
        print_next_commands(
            out,
            f"jaxdist eval {folder / best.name}",
            f"jaxdist train {shlex.quote(settings.experiment)} {words} run.name=best",
        )
