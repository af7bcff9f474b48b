"""`jaxdist eval RUN`: score a checkpoint of a run on the held-out samples."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
    add_trust_option,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "score a checkpoint of a run on its held-out samples"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run and one of its checkpoints."""
    add_run_argument(parser, "run")
    add_checkpoint_option(parser)
    add_runs_folder_option(parser)
    add_trust_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Evaluate and print the score."""
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_trusted_config
    from jaxdist.launch.training.job.setup import settle

    folder = find_run(args.run, folder=args.dir)
    # The layout changes nothing in the score: it may shrink to what is here.
    config = read_trusted_config(folder, trust=args.trust).resolved
    job = settle(config, process_group())

    from jaxdist.launch.training.console_reporter import accuracy_line
    from jaxdist.launch.training.evaluate import evaluate_checkpoint

    step, score = evaluate_checkpoint(job, folder, args.checkpoint)
    if args.json:
        print_json({"run": folder.name, "checkpoint": step, **score})
    else:
        console().print(f"{folder.name}    checkpoint {step}    {accuracy_line(score)}")
    return 0
