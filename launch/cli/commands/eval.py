"""`jaxdist eval RUN`: score a checkpoint of a run on the held-out samples.

`jaxdist eval RUN --choices FILE.jsonl`: let a language model answer questions.
"""

import re
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
    add_trust_option,
)
from jaxdist.launch.terminal.console import console, print_json

if TYPE_CHECKING:
    from jaxdist.launch.run_folder.folder import RunFolder

summary = "score a checkpoint of a run on its held-out samples"
example = "digits"


def add_arguments(parser: CommandParser) -> None:
    """Take a run and one of its checkpoints."""
    add_run_argument(parser, "run")
    parser.add_argument(
        "--choices",
        metavar="FILE",
        help="questions instead, a JSON object a line: prompt, choices, and answer, "
        "the place of the right one",
    )
    add_checkpoint_option(parser)
    add_runs_folder_option(parser)
    add_trust_option(parser)
    parser.add_argument(
        "--window",
        metavar="ROWS",
        help="rows of the windows by which images are scored that no device could hold "
        "whole: 64,64,64, or one number (default: the run's data.eval_window, or its "
        "crop)",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        metavar="PART",
        help="part of a window that the next one sees as well (default: 0.5)",
    )
    parser.add_argument(
        "--blend",
        choices=("gaussian", "constant", "center"),
        help="how windows count that see the same pixel (default: gaussian)",
    )
    add_json_option(parser)


def _window_text(text: str) -> str:
    """Return rows of a window as a setting is typed: 64,64,64.

    Raises:
        BadInput: other than whole numbers between commas or `x`.
    """
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text):
        raise BadInput(
            "there are no such windows",
            rule="--window has a whole number of rows for each dim of an image, or one "
            "for all",
            values=f"--window {text}",
            remedy="--window 64,64,64",
        )
    return text.replace("x", ",")


def run(args: Namespace) -> int:
    """Evaluate and print the score."""
    from jaxdist.launch.config.resolve import override_resolved
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_trusted_config
    from jaxdist.launch.training.job.setup import settle

    folder = find_run(args.run, folder=args.dir)
    if args.choices:
        return _answer_questions(args, folder)
    # The layout changes nothing in the score: it may shrink to what is here.
    config = read_trusted_config(folder, trust=args.trust).resolved
    asked = {
        "eval_window": args.window and _window_text(args.window),
        "eval_overlap": args.overlap,
        "eval_blend": args.blend,
    }
    words = [f"data.{key}={value}" for key, value in asked.items() if value is not None]
    job = settle(override_resolved(config, words), process_group())

    from jaxdist.launch.training.console_reporter import accuracy_line
    from jaxdist.launch.training.evaluate import evaluate_checkpoint
    from jaxdist.train.window_evaluate import WindowEvaluator

    step, score, evaluate = evaluate_checkpoint(job, folder, args.checkpoint)
    windows = evaluate if isinstance(evaluate, WindowEvaluator) else None
    if args.json:
        used = windows.resources if windows else {}
        print_json({"run": folder.name, "checkpoint": step, **score, **used})
        return 0
    line = f"{folder.name}    checkpoint {step}    {accuracy_line(score)}"
    for name in job.layout.objective.score_names:
        line += f", {name} {score[name]:.4f}"
    console().print(line)
    if windows:
        console().print(windows.describe())
    return 0


def _answer_questions(args: Namespace, folder: "RunFolder") -> int:
    """Let a language model answer questions, and print how many are right."""
    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices

    # As text is generated: one device is enough.
    prepare_devices(Plan(), explicit=False)
    from jaxdist.launch.training.choices import read_questions, score_choices

    score = score_choices(
        folder,
        read_questions(Path(args.choices)),
        checkpoint=args.checkpoint,
        trust=args.trust,
    )
    share, count = score.correct / score.questions, score.questions
    per_byte = score.correct_per_byte / count
    if args.json:
        print_json(
            {
                "run": folder.name,
                "checkpoint": score.checkpoint,
                "questions": count,
                "accuracy": share,
                "standard_error": score.standard_error,
                "accuracy_per_byte": per_byte,
            }
        )
    else:
        console().print(
            f"{folder.name}    checkpoint {score.checkpoint}    "
            f"{format_percent(share, 2)} right ({score.correct} of {count}, standard "
            f"error {format_percent(score.standard_error, 2)}), "
            f"{format_percent(per_byte, 2)} by the byte"
        )
    return 0
