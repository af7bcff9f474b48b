"""`jaxdist doctor`: what is wrong with this machine, and the fix."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "check this machine, and say the fix for what is wrong"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take the experiment that should run here."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        nargs="?",
        default="digits",
        help="expect the devices of its plan (digits)",
    )
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print every check; fail when one of them failed."""
    from dataclasses import asdict
    from pathlib import Path

    from jaxdist.launch.config.experiment import load_experiment
    from jaxdist.launch.doctor.checks import run_checks

    # The settings of the experiment are not resolved: a wrong one should not keep the
    # machine from being checked.
    plan = load_experiment(args.experiment).plan
    checks = run_checks(plan, Path(args.dir))
    counts = {
        state: sum(check.state == state for check in checks)
        for state in ("ok", "warn", "failed")
    }
    if args.json:
        print_json({"checks": [asdict(check) for check in checks], **counts})
        return 1 if counts["failed"] else 0
    out = console()
    for check in checks:
        out.print(f"  {check.state:7} {check.name:13} {check.text}", soft_wrap=True)
        if check.remedy:
            out.print(f"{'':24}remedy: {check.remedy}", soft_wrap=True)
    warnings = f"{counts['warn']} warning{'s' * (counts['warn'] != 1)}"
    out.print(f"\n  {counts['ok']} ok, {warnings}, {counts['failed']} failed")
    return 1 if counts["failed"] else 0
