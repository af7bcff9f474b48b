"""`jaxdist import hf PATH`: weights of others as a run."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import CommandParser, add_json_option, add_overrides
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

summary = "make a run of weights of Hugging Face"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take a format, and what it imports."""
    form = parser.add_form(
        "hf",
        "a folder with config.json and *.safetensors, of transformers",
        example="Llama-3.2-1B --name llama-1b",
    )
    form.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="folder with config.json and model.safetensors, or its files and index",
    )
    form.add_argument(
        "--name", metavar="NAME", help="of the run (the name of the folder)"
    )
    form.add_argument("--dir", default="runs", help="folder of the runs (runs)")
    add_overrides(form)
    add_json_option(form)


def run(args: Namespace) -> int:
    """Import, and say what can be done with the run."""
    import os

    from jaxdist.launch.distributed.environment import is_multi_process
    from jaxdist.launch.distributed.jax_processes import initialize
    from jaxdist.launch.distributed.process_group import process_group
    from jaxdist.launch.training.import_weights import import_weights

    # Several processes import together, each what its devices hold.
    if is_multi_process(os.environ):
        initialize()
    group = process_group()
    # A file of the folder stands for the folder.
    path = args.path.parent if args.path.is_file() else args.path
    name = args.name or path.absolute().name
    words = [f"run.name={name}", f"run.dir={args.dir}", *args.overrides]
    made = import_weights(path, words, group, getattr(args, "command_line", ()))
    if not group.is_primary:
        return 0
    if args.json:
        print_json(
            {
                "run": made.folder.name,
                "folder": str(made.folder.path),
                "parameters": made.parameters,
                "files": list(made.companions),
            }
        )
        return 0
    out = console()
    out.print(
        f"imported  {made.folder.path}    {format_count(made.parameters)} parameters, "
        f"{made.model}",
        soft_wrap=True,
    )
    if made.companions:
        out.print(f"  beside   {', '.join(made.companions)}", soft_wrap=True)
    where = made.folder.path
    print_next_commands(
        out,
        f"jaxdist train {made.experiment} weights={where} data.path=FILE",
        f"jaxdist ckpt inspect {where}",
        f"jaxdist export hf {where} FOLDER",
    )
    return 0
