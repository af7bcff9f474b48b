"""`jaxdist predict`: the time and memory of a step, by term, without running it."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_target_option,
    add_what_if_option,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "predict the time and memory of a step, by term"
example = "resnet50 --cluster abci"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, and what to predict with."""
    add_experiment_arguments(parser)
    parser.add_argument("--plan", metavar="FILE", help="the plan of this file")
    add_target_option(parser)
    add_what_if_option(parser)
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", help="a name or a file of docs/clusters.md"
    )
    parser.add_argument(
        "--chakra",
        metavar="FOLDER",
        type=Path,
        help="write the step as Chakra execution traces, a file a rank, for simulators "
        "and `jaxdist simulate traces`",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Predict and print."""
    from jaxdist.launch.planning.predict import (
        PredictionQuery,
        predict_experiment,
        print_prediction,
    )

    made = predict_experiment(query_from(args, PredictionQuery))
    print_json(made.to_dict()) if args.json else print_prediction(console(), made)
    return 0
