"""`jaxdist resume RUN`: resume a run with the configuration that it has stored."""

from argparse import Namespace

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_overrides,
    add_run_argument,
    add_runs_folder_option,
)
from jaxdist.launch.cli.train_run import (
    add_training_options,
    run_training,
    training_request,
)

summary = "resume a stopped run with its own configuration"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, what to change of it, and what a training takes."""
    add_run_argument(parser)
    add_overrides(parser)
    add_runs_folder_option(parser)
    add_training_options(parser)


def run(args: Namespace) -> int:
    """Train to the end of the run, write the report, and say what came of it."""
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_config_lock

    folder = find_run(args.run, folder=args.dir)
    for word in args.overrides:
        if word.startswith(("run.name=", "run.dir=")):
            raise BadInput(
                f"{word} names another run",
                rule="a run that is resumed stays in its folder",
                values=f"{folder.path}, {word}",
                remedy=f"without {word}; a copy of the folder is a run of its own",
            )
    experiment = read_config_lock(folder).resolved.experiment
    return run_training(training_request(args, experiment, folder), as_json=args.json)
