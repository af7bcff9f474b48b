"""`jaxdist oracle`: predict a step by term, or score predictions on measured rows."""

import shlex
from argparse import Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import CommandParser, add_json_option, add_what_if_option

summary = "predict the time and memory of a step, or score predictions"


def add_arguments(parser: CommandParser) -> None:
    """Take what to do, what of, and the constants or the cluster to predict with."""
    parser.add_argument(
        "action",
        choices=("predict", "score"),
        help="predict: the step of an experiment; score: predict measured rows",
    )
    parser.add_argument(
        "subject",
        metavar="EXPERIMENT|FILE.csv",
        help="a name of `jaxdist experiments`, or measured rows",
    )
    parser.add_argument(
        "overrides",
        metavar="key.sub=value",
        nargs="*",
        default=(),
        help="of the experiment; `jaxdist config EXPERIMENT` lists the keys",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="predict: a name or a file of docs/clusters.md; score: the same, or what "
        "`jaxdist calibrate fit` wrote",
    )
    add_what_if_option(parser)
    parser.add_argument("--plan", metavar="FILE", help="predict: the plan of this file")
    parser.add_argument(
        "--format", metavar="NAME", help="score: form of the rows (told by the header)"
    )
    parser.add_argument(
        "--rows",
        metavar="SELECTION",
        help="score these rows; those that were fitted are then refused, not left out",
    )
    parser.add_argument(
        "--explain",
        metavar="N",
        type=int,
        help="score: print the terms of one row: its number in the file, from 0",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Predict or score, and print."""
    return _predict(args) if args.action == "predict" else _score(args)


def _predict(args: Namespace) -> int:
    from jaxdist.launch.planning.predict import predict_experiment, print_prediction
    from jaxdist.launch.terminal.console import console, print_json

    _reject_options(args, "predict", ("format", "rows", "explain"))
    if args.cluster is None:
        raise BadInput(
            "nothing says on which machine",
            rule="a prediction is for a cluster",
            values=f"jaxdist oracle predict {args.subject}, no --cluster",
            remedy=(
                "--cluster abci",
                "jaxdist calibrate -o cluster.json measures yours",
            ),
        )
    resolved, found = predict_experiment(args)
    if args.json:
        print_json({"experiment": resolved.experiment, **found.to_dict()})
    else:
        plan = ("--plan", args.plan) if args.plan else ()
        words = (args.subject, *args.overrides, *plan, "--cluster", args.cluster)
        print_prediction(console(), resolved, found, shlex.join(words))
    return 0


def _score(args: Namespace) -> int:
    from jaxdist.launch.calibration.score import print_score, run_score, score_to_dict
    from jaxdist.launch.terminal.console import console, print_json

    _reject_options(args, "score", ("overrides", "plan", "what_if"))
    args.measured = Path(args.subject)
    asked = run_score(args)
    if args.json:
        print_json(score_to_dict(asked))
    else:
        print_score(console(), asked)
    return 0


def _reject_options(args: Namespace, action: str, names: tuple[str, ...]) -> None:
    """Refuse what is for the other action."""
    for name in names:
        if getattr(args, name) not in (None, (), []):
            raise BadInput(
                f"oracle {action} takes no {name}",
                rule="options belong to predict or to score, as --help says",
                values=f"{name} = {getattr(args, name)}",
                remedy=f"jaxdist oracle {action} {args.subject} without it",
            )
