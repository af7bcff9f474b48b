"""`jaxdist report RUN`: the report of a run, made again from what its folder holds."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_run_argument,
    add_runs_folder_option,
    add_trust_option,
)
from jaxdist.launch.terminal.console import console

if TYPE_CHECKING:
    from jaxdist.launch.run_folder.folder import RunFolder

summary = "write the report of a run again, with what is known by now"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, and what to evaluate of it."""
    add_run_argument(parser, "run")
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="held-out samples that a checkpoint is scored on one by one, to show "
        "which labels are confused, the worst samples, or text (1000); 0: none",
    )
    add_checkpoint_option(parser)
    add_runs_folder_option(parser)
    add_trust_option(parser)


def run(args: Namespace) -> int:
    """Write the report."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.folder import find_run

    folder = find_run(args.run, folder=args.dir)
    # At once, with what is there: what is refused has changed nothing.
    page = write_report(folder.path)
    if args.samples > 0:
        _evaluate_samples(folder, args)
        page = write_report(folder.path)
    console().print(f"wrote {page}")
    return 0


def _evaluate_samples(folder: "RunFolder", args: Namespace) -> None:
    """Score samples of a run that has a checkpoint; no report is refused for it."""
    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices
    from jaxdist.launch.terminal.progress_bar import StageProgress

    if not folder.checkpoints.is_dir():
        return
    # One device is enough for a thousand samples, whatever the run was trained on.
    prepare_devices(Plan(), explicit=False)

    # From here on jax is imported.
    from jaxdist.launch.training.sample_evaluation import write_sample_evaluation

    with StageProgress(console(error=True)) as stages:
        stages.begin("scoring held-out samples")
        write_sample_evaluation(
            folder, samples=args.samples, checkpoint=args.checkpoint, trust=args.trust
        )
