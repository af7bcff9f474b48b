"""`jaxdist export hf RUN OUT`: a checkpoint in the format of others."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.text.formatting import format_count, format_size
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_checkpoint_option,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "write a checkpoint as a folder of Hugging Face"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take a format, and what is exported."""
    form = parser.add_form(
        "hf",
        "config.json and *.safetensors, which transformers reads",
        example="llama-1b llama-1b-hf",
    )
    add_run_argument(form)
    form.add_argument("out", metavar="OUT", type=Path, help="folder to make")
    add_checkpoint_option(form)
    form.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of all tensors (as each was imported, else float32)",
    )
    form.add_argument(
        "--max-file", metavar="SIZE", default="5GB", help="of one file (5GB)"
    )
    add_runs_folder_option(form)
    add_json_option(form)


def run(args: Namespace) -> int:
    """Export, and say what was written."""
    import jax

    from jaxdist.core.text.parsing import parse_bytes
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.training.export_weights import export_weights

    # Accelerators are left alone: a run may be using them.
    jax.config.update("jax_platforms", "cpu")
    made = export_weights(
        find_run(args.run, folder=args.dir),
        args.out,
        checkpoint=args.checkpoint,
        dtype=args.dtype,
        max_file_bytes=int(parse_bytes(args.max_file, "--max-file")),
    )
    if args.json:
        print_json(
            {
                "folder": str(made.path),
                "checkpoint": made.checkpoint,
                "tensors": made.tensors,
                "bytes": made.nbytes,
                "files": list(made.files),
            }
        )
        return 0
    console().print(
        f"exported  {made.path}    checkpoint {made.checkpoint}, "
        f"{format_count(made.tensors)} tensors, {format_size(made.nbytes)}: "
        f"{', '.join(made.files)}",
        soft_wrap=True,
    )
    return 0
