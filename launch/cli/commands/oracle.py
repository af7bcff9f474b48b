"""`jaxdist oracle`: predict a step by term, or score predictions on measured rows."""

from argparse import Namespace
from pathlib import Path

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_what_if_option,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "predict the time and memory of a step, or score predictions"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, or measured rows, and what to predict with."""
    predict = parser.add_form(
        "predict",
        "the step of an experiment, by term",
        example="resnet50 --cluster abci",
    )
    add_experiment_arguments(predict)
    predict.add_argument("--plan", metavar="FILE", help="the plan of this file")
    add_what_if_option(predict)

    score = parser.add_form("score", "predict measured rows", example="FILE.csv")
    add = score.add_argument
    add("measured", metavar="FILE.csv", type=Path, help="measured rows")
    add("--format", metavar="NAME", help="form of the rows (told by the header)")
    add(
        "--rows",
        metavar="SELECTION",
        help="score these rows; those that were fitted are then refused, not left out",
    )
    add(
        "--explain",
        metavar="N",
        type=int,
        help="print the terms of one row: its number in the file, from 0",
    )
    name = "a name or a file of docs/clusters.md"
    for form, what in (
        (predict, name),
        (score, f"{name}, or what `jaxdist calibrate fit` wrote"),
    ):
        form.add_argument("--cluster", metavar="NAME|FILE", help=what)
        add_json_option(form)


def run(args: Namespace) -> int:
    """Predict or score, and print."""
    from jaxdist.launch.calibration.score import ScoreQuery, print_score, run_score
    from jaxdist.launch.planning.predict import (
        PredictionQuery,
        predict_experiment,
        print_prediction,
    )

    if args.action == "predict":
        made = predict_experiment(query_from(args, PredictionQuery))
        print_json(made.to_dict()) if args.json else print_prediction(console(), made)
    else:
        scored = run_score(query_from(args, ScoreQuery))
        print_json(scored.to_dict()) if args.json else print_score(console(), scored)
    return 0
