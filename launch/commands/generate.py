"""`jaxdist generate RUN --prompt TEXT`: let a language model continue a text."""

import math
from argparse import Namespace

from jaxdist.core.errors import BadInput
from jaxdist.launch.arguments import Parser, add_folder, add_json, add_run

summary = "let a run that was trained on text continue a text"


def add_arguments(parser: Parser) -> None:
    """Take a run, how the text begins, and how it goes on."""
    add_run(parser, "run")
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="how the text begins"
    )
    parser.add_argument(
        "--tokens", type=int, default=200, metavar="N", help="characters to add (200)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="0 takes the likeliest each time, 1 draws as the network says (0.8)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another seed, another text"
    )
    parser.add_argument(
        "--checkpoint", type=int, metavar="N", help="step of the checkpoint (newest)"
    )
    add_folder(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Generate and print the text."""
    from jaxdist.launch.runs import find_run

    _check(args)
    folder = find_run(args.run, folder=args.dir)

    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices import prepare_devices

    prepare_devices(Plan(), explicit=False)

    from jaxdist.launch.console import console, print_json
    from jaxdist.launch.generation import continue_text

    step, text = continue_text(
        folder,
        args.prompt,
        tokens=args.tokens,
        temperature=args.temperature,
        seed=args.seed,
        checkpoint=args.checkpoint,
    )
    if args.json:
        found = {"prompt": args.prompt, "text": text, "seed": args.seed}
        print_json({"run": folder.name, "checkpoint": step, **found})
    else:
        out = console()
        out.print(args.prompt + text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _check(args: Namespace) -> None:
    """Refuse what no run could answer.

    Raises:
        BadInput: an empty prompt, or a number out of its range.
    """
    if not args.prompt:
        raise BadInput(
            "the prompt is empty",
            rule="a text begins with at least one character",
            remedy='--prompt "First"',
        )
    if args.tokens < 1:
        raise BadInput(
            "there is nothing to add",
            rule="--tokens is at least 1",
            values=f"--tokens {args.tokens}",
            remedy="--tokens 200",
        )
    if not 0 <= args.temperature < math.inf:
        raise BadInput(
            "this is no temperature",
            rule="--temperature is at least 0",
            values=f"--temperature {args.temperature}",
            remedy="--temperature 0.8",
        )
