"""`jaxdist train EXPERIMENT`: run an experiment to its end, or resume it."""

from argparse import Namespace

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_target_option,
)
from jaxdist.launch.cli.train_run import (
    add_training_options,
    run_training,
    training_request,
)

summary = "train an experiment, or resume it by the name of its run"
example = "digits epochs=2 optim.lr=0.1"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, overrides, a plan, and what to profile."""
    add_experiment_arguments(parser)
    add_training_options(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="compile the step, hold it against its plan, and end; nothing is written",
    )
    add_target_option(parser)


def run(args: Namespace) -> int:
    """Train, write the report, and say what came of it; or show what would run.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    request = training_request(args, args.experiment)
    if not args.dry_run:
        if args.target:
            words = f"{args.experiment} --dry-run --target {args.target}"
            raise BadInput(
                f"nothing is trained on {args.target} from here",
                rule="--target compiles for a machine that is not here, with --dry-run",
                values=f"--target {args.target}",
                remedy=f"jaxdist train {words}",
            )
        return run_training(request, as_json=args.json)

    from jaxdist.launch.cli.commands.audit import show_audit
    from jaxdist.launch.cli.commands.compile import show_compiled
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.job.request import resolve_request
    from jaxdist.launch.training.job.setup import settle

    # A run that is resumed would do so with its own configuration.
    asked = resolve_request(request, for_training=True)
    if args.target:
        return show_compiled(args, asked.resolved)
    return show_audit(args, settle(asked, process_group()))
