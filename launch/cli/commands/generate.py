"""`jaxdist generate RUN --prompt PROMPT`: continue a text, or caption a clip."""

import math
from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
)

if TYPE_CHECKING:
    from jaxdist.launch.config import Experiment
    from jaxdist.launch.run_folder.folder import RunFolder

summary = "let a run continue a text, or say what happens in a clip"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, what it is asked, and how it answers."""
    add_run_argument(parser, "run")
    parser.add_argument(
        "--prompt",
        required=True,
        help="how the text begins; for a run on clips the number of a held-out clip",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="characters to add (200), or most words of a caption (20)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the likeliest each time, 1 draws as the network says "
        "(text 0.8; captions always 0)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="another seed, another text"
    )
    parser.add_argument(
        "--checkpoint", type=int, metavar="N", help="step of the checkpoint (newest)"
    )
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Generate and print the text or the caption."""
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_config_lock
    from jaxdist.models.registry import takes_clips

    _check_options(args)
    folder = find_run(args.run, folder=args.dir)
    config = read_config_lock(folder).resolved.config
    clips = takes_clips(config.model)
    if clips and args.temperature:
        raise _no_temperature_error(args.temperature)

    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices

    prepare_devices(Plan(), explicit=False)
    if clips:
        _print_caption(args, config, folder)
    else:
        _print_continuation(args, folder)
    return 0


def _print_continuation(args: Namespace, folder: "RunFolder") -> None:
    """Print what follows a text."""
    from jaxdist.launch.terminal.console import console, print_json
    from jaxdist.launch.training.generate import generate_text

    step, text = generate_text(
        folder,
        args.prompt,
        max_tokens=200 if args.tokens is None else args.tokens,
        temperature=0.8 if args.temperature is None else args.temperature,
        seed=args.seed,
        checkpoint=args.checkpoint,
    )
    if args.json:
        found = {"prompt": args.prompt, "text": text, "seed": args.seed}
        print_json({"run": folder.name, "checkpoint": step, **found})
    else:
        out = console()
        out.print(args.prompt + text, markup=False, highlight=False, soft_wrap=True)


def _print_caption(args: Namespace, config: "Experiment", folder: "RunFolder") -> None:
    """Print what a run says of a clip, and what the data says."""
    from jaxdist.launch.terminal.console import console, print_json
    from jaxdist.launch.training.generate import caption_clip

    found = caption_clip(
        config,
        folder,
        args.prompt,
        max_words=20 if args.tokens is None else args.tokens,
        checkpoint=args.checkpoint,
    )
    if args.json:
        both = {"text": found.generated, "written": found.reference}
        about = {"run": folder.name, "checkpoint": found.checkpoint}
        print_json({**about, "prompt": args.prompt, **both})
    else:
        lines = f"said     {found.generated}\nwritten  {found.reference}"
        console().print(lines, markup=False, highlight=False, soft_wrap=True)


def _check_options(args: Namespace) -> None:
    """Refuse what no run could answer.

    Raises:
        BadInput: an empty prompt, or a number out of its range.
    """
    if not args.prompt:
        raise BadInput(
            "the prompt is empty",
            rule="a text begins with a character, and a clip has a number",
            remedy='--prompt "First"',
        )
    if args.tokens is not None and args.tokens < 1:
        raise BadInput(
            "there is nothing to add",
            rule="--tokens is at least 1",
            values=f"--tokens {args.tokens}",
            remedy="--tokens 200",
        )
    if args.temperature is not None and not 0 <= args.temperature < math.inf:
        raise BadInput(
            "this is no temperature",
            rule="--temperature is at least 0",
            values=f"--temperature {args.temperature}",
            remedy="--temperature 0.8",
        )


def _no_temperature_error(temperature: float) -> BadInput:
    return BadInput(
        "captions are not drawn",
        rule="a caption is the likeliest word each time",
        values=f"--temperature {temperature}",
        remedy="--temperature 0, or without it",
    )
