"""`jaxdist report RUN [RUN ...]`: the report of a run again, or of several runs."""

import os
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_run_argument,
    add_runs_folder_option,
    add_target_option,
    add_trust_option,
)
from jaxdist.launch.terminal.console import console

if TYPE_CHECKING:
    from jaxdist.launch.run_folder.folder import RunFolder

summary = "write the report of a run again, or one page of several runs"
example = "digits digits-2"


def add_arguments(parser: CommandParser) -> None:
    """Take a run and what to evaluate of it, or several."""
    add_run_argument(parser, "run")
    parser.add_argument(
        "others",
        metavar="RUN",
        nargs="*",
        help="more runs: one page with their curves in one chart each, their figures, "
        "and what differs",
    )
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        type=Path,
        help="page of several runs (report.html beside the first one's folder)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="held-out samples that a checkpoint is scored on one by one, to show "
        "which labels are confused, the worst samples, or text (1000); 0: none",
    )
    add_checkpoint_option(parser)
    add_target_option(parser)
    add_runs_folder_option(parser)
    add_trust_option(parser)


def run(args: Namespace) -> int:
    """Write the report."""
    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices
    from jaxdist.launch.report import write_report, write_runs_page
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.terminal.progress_bar import StageProgress

    names = [args.run, *args.others]
    folder, *others = (find_run(name, folder=args.dir) for name in names)
    if others:
        page = args.output or folder.path.parent / "report.html"
        console().print(f"wrote {write_runs_page([folder, *others], page)}")
        return 0
    if args.output:
        raise BadInput(
            "the report of one run lies in its folder",
            rule="-o names the page of several runs",
            values=f"{folder.report}",
            remedy=f"jaxdist report {args.run}",
        )
    # At once, with what is there: what is refused has changed nothing.
    page = write_report(folder.path)
    if args.target:
        _compile_step(folder, args)
        page = write_report(folder.path)
    if args.samples > 0 and folder.checkpoints.is_dir():
        # One device is enough for a thousand samples, whatever the run was trained on.
        prepare_devices(Plan(), explicit=False)

        # From here on jax is imported.
        from jaxdist.launch.training.sample_evaluation import write_sample_evaluation

        with StageProgress(console(error=True)) as stages:
            stages.begin("scoring held-out samples")
            write_sample_evaluation(
                folder,
                samples=args.samples,
                checkpoint=args.checkpoint,
                trust=args.trust,
            )
        page = write_report(folder.path)
    console().print(f"wrote {page}")
    return 0


def _compile_step(folder: "RunFolder", args: Namespace) -> None:
    """Compile the step of a run for a target, and keep what the compiler says.

    Raises:
        BadInput: the plan of the run is not for the target, or there is no compiler.
    """
    from jaxdist.core.files import write_atomic
    from jaxdist.core.validation import json_text
    from jaxdist.launch.devices.jax_environment import target_answer_folder
    from jaxdist.launch.run_folder.lockfile import read_trusted_config
    from jaxdist.meshes.targets.compilers import prepare_compilation
    from jaxdist.meshes.targets.target import parse_target

    target = parse_target(args.target)
    config = read_trusted_config(folder, trust=args.trust).resolved
    prepare_compilation(target)

    # From here on jax is imported.
    from jaxdist.launch.analysis.target_compile import compile_for_target

    found = compile_for_target(config, target, target_answer_folder(os.environ))
    write_atomic(folder.compiled_step, json_text(asdict(found), indent=2) + "\n")
