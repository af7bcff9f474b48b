"""`jaxdist generate RUN --prompt PROMPT`: continue a text, or caption a clip."""

import math
from argparse import Namespace

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
    add_trust_option,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "let a run continue a text, or say what happens in a clip"
example = "characters --prompt 'ROMEO:'"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, what it is asked, and how it answers."""
    add_run_argument(parser, "run")
    add = parser.add_argument
    add(
        "--prompt",
        required=True,
        help="how the text begins; for a run on clips the number of a held-out clip",
    )
    add(
        "--tokens",
        type=int,
        metavar="N",
        help="characters to add (200), or most words of a caption (20)",
    )
    add(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the likeliest each time, 1 draws as the network says "
        "(text 0.8; captions always 0)",
    )
    add("--seed", type=int, default=0, metavar="N", help="another seed, another text")
    add_checkpoint_option(parser)
    add_runs_folder_option(parser)
    add_trust_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Generate and print the text or the caption."""
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_trusted_config
    from jaxdist.models.registry import takes_clips

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
    folder = find_run(args.run, folder=args.dir)
    config = read_trusted_config(folder, trust=args.trust).resolved.config
    # The model of the run decides what a prompt is: a text, or the number of a clip.
    clips = takes_clips(config.model)
    if clips and args.temperature:
        raise BadInput(
            "captions are not drawn",
            rule="a caption is the likeliest word each time",
            values=f"--temperature {args.temperature}",
            remedy="--temperature 0, or without it",
        )

    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices

    # One device is enough for one answer, whatever the run was trained on.
    prepare_devices(Plan(), explicit=False)
    from jaxdist.launch.training.generate import caption_clip, generate_text

    if clips:
        words = 20 if args.tokens is None else args.tokens
        caption = caption_clip(
            config,
            folder,
            args.prompt,
            max_words=words,
            checkpoint=args.checkpoint,
            trust=args.trust,
        )
        checkpoint = caption.checkpoint
        more = {"text": caption.generated, "written": caption.reference}
        shown = f"said     {caption.generated}\nwritten  {caption.reference}"
    else:
        checkpoint, text = generate_text(
            folder,
            args.prompt,
            max_tokens=200 if args.tokens is None else args.tokens,
            temperature=0.8 if args.temperature is None else args.temperature,
            seed=args.seed,
            checkpoint=args.checkpoint,
            trust=args.trust,
        )
        more, shown = {"text": text, "seed": args.seed}, args.prompt + text
    if args.json:
        about = {"run": folder.name, "checkpoint": checkpoint, "prompt": args.prompt}
        print_json(about | more)
    else:
        # A text may hold brackets, which are no markup of the terminal's.
        console().print(shown, markup=False, highlight=False, soft_wrap=True)
    return 0
