"""`jaxdist generate RUN --prompt PROMPT`: continue a text, or caption a clip."""

import math
from argparse import Namespace
from typing import Any

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
example = "characters --prompt 'ROMEO:' --top-p 0.9"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, what it is asked, and how it answers."""
    add_run_argument(parser, "run")
    add = parser.add_argument
    add(
        "--prompt",
        required=True,
        action="append",
        metavar="TEXT",
        help="how the text begins, again for another one; for a run on clips the "
        "number of a held-out clip",
    )
    add(
        "--tokens",
        type=int,
        metavar="N",
        help="characters or tokens to add (200), or most words of a caption (20)",
    )
    add(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the likeliest each time, 1 draws as the network says "
        "(text 0.8; captions always 0)",
    )
    add(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="draw of the K likeliest alone",
    )
    add(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw of the fewest tokens that are P likely together",
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

    _check(args)
    folder = find_run(args.run, folder=args.dir)
    config = read_trusted_config(folder, trust=args.trust).resolved.config
    # The model of the run decides what a prompt is: a text, or the number of a clip.
    clips = takes_clips(config.model)
    if clips and (args.temperature or len(args.prompt) > 1):
        raise BadInput(
            "captions are not drawn, and are said one by one",
            rule="a caption is the likeliest word each time",
            values=f"--temperature {args.temperature or 0}, {len(args.prompt)} clips",
            remedy=f"--prompt {args.prompt[0]}, without --temperature",
        )

    from jaxdist.core.plan import Plan
    from jaxdist.launch.devices.prepare import prepare_devices

    # One device is enough for one answer, whatever the run was trained on.
    prepare_devices(Plan(), explicit=False)
    from jaxdist.launch.training.generate import caption_clip, generate_text
    from jaxdist.train.generate import Sampling

    if clips:
        words = 20 if args.tokens is None else args.tokens
        (prompt,) = args.prompt
        caption = caption_clip(
            config,
            folder,
            prompt,
            max_words=words,
            checkpoint=args.checkpoint,
            trust=args.trust,
        )
        checkpoint = caption.checkpoint
        more: dict[str, Any] = {
            "prompt": prompt,
            "text": caption.generated,
            "written": caption.reference,
        }
        shown = [f"said     {caption.generated}\nwritten  {caption.reference}"]
    else:
        checkpoint, texts = generate_text(
            folder,
            args.prompt,
            max_tokens=200 if args.tokens is None else args.tokens,
            sampling=Sampling(
                temperature=0.8 if args.temperature is None else args.temperature,
                top_k=args.top_k,
                top_p=args.top_p,
                seed=args.seed,
            ),
            checkpoint=args.checkpoint,
            trust=args.trust,
        )
        shown = [a + b for a, b in zip(args.prompt, texts, strict=True)]
        # Of one prompt as ever; of several a list of each.
        more = {"prompt": args.prompt, "text": texts, "seed": args.seed}
        if len(texts) == 1:
            more |= {"prompt": args.prompt[0], "text": texts[0]}
    if args.json:
        print_json({"run": folder.name, "checkpoint": checkpoint} | more)
    else:
        # A text may hold brackets, which are no markup of the terminal's.
        for number, text in enumerate(shown):
            console().print(
                "\n" * (number > 0) + text,
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    return 0


def _check(args: Namespace) -> None:
    """Refuse options out of range."""
    if not all(args.prompt):
        raise BadInput(
            "the prompt is empty",
            rule="a text begins with a character, and a clip has a number",
            remedy='--prompt "First"',
        )
    temperature = 0.8 if args.temperature is None else args.temperature
    for is_right, option, rule, value, works in (
        (
            args.tokens is None or args.tokens > 0,
            "tokens",
            "at least 1",
            args.tokens,
            200,
        ),
        (0 <= temperature < math.inf, "temperature", "at least 0", temperature, 0.8),
        (args.top_k >= 0, "top-k", "at least 0, for all tokens", args.top_k, 40),
        (0 < args.top_p <= 1, "top-p", "above 0 and at most 1", args.top_p, 0.9),
    ):
        if not is_right:
            raise BadInput(
                "text cannot be drawn so",
                rule=f"--{option} is {rule}",
                values=f"--{option} {value}",
                remedy=f"--{option} {works}",
            )
