"""`jaxdist prepare FOLDER --name NAME`: a folder of images as a data set."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import CommandParser, add_json_option
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

summary = "write a folder of images as a data set to train on"
example = "photos --name photos"


def add_arguments(parser: CommandParser) -> None:
    """Take the folder, the name, and the folder of all data sets."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="has train/CLASS/*.jpg and test/CLASS/*.jpg"
    )
    parser.add_argument("--name", required=True, help="what data.name will take")
    parser.add_argument(
        "--dir", default="data", help="folder of all data sets, data.dir (data)"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Write the data set and say what is in it."""
    from jaxdist.input.folder_builder import prepare_folder

    listing = prepare_folder(args.folder, args.name, Path(args.dir))
    home = str(Path(args.dir, args.name))
    sizes = {split: len(files) for split, files in listing.splits.items()}
    if args.json:
        classes = list(listing.classes)
        print_json({"data": args.name, "path": home, "classes": classes, **sizes})
        return 0
    out = console()
    said = ", ".join(f"{format_count(size)} {split}" for split, size in sizes.items())
    out.print(f"{home}    {said}, {format_count(len(listing.classes))} classes")
    # The default folder is where `train` looks anyhow.
    elsewhere = f" data.dir={args.dir}" * (args.dir != "data")
    print_next_commands(out, f"jaxdist train resnet50 data.name={args.name}{elsewhere}")
    return 0
