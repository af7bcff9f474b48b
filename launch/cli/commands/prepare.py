"""`jaxdist prepare FOLDER --name NAME`: images or volumes as a data set."""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import CommandParser, add_json_option
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

summary = "write images or volumes as a data set to train on"
example = "photos --name photos"


def add_arguments(parser: CommandParser) -> None:
    """Take what is read, the name, the folder of all data sets, and how volumes lie."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="has train/CLASS/*.jpg and test/CLASS/*.jpg; or volumes, as data.name "
        "takes them: nifti:FOLDER, hdf5:FILE, numpy:FOLDER, zarr:STORE",
    )
    parser.add_argument("--name", required=True, help="what data.name will take")
    parser.add_argument(
        "--dir", default="data", help="folder of all data sets, data.dir (data)"
    )
    parser.add_argument(
        "--keys",
        default="",
        help="of volumes: other names of arrays, image=raw,mask=seg",
    )
    parser.add_argument(
        "--size", default="", help="of volumes: cut or filled to this size, D,H,W"
    )
    parser.add_argument(
        "--chunk", default="", help="of volumes: size of a chunk, D,H,W (about 1 MiB)"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Write the data set and say what is in it."""
    if ":" in args.folder:
        return _prepare_volumes(args)
    for option in ("keys", "size", "chunk"):
        if getattr(args, option):
            raise BadInput(
                f"--{option} is for volumes",
                rule="volumes are named with their format",
                values=f"{args.folder} --{option} {getattr(args, option)}",
                remedy=f"jaxdist prepare nifti:{args.folder} --name {args.name}",
            )
    from jaxdist.input.folder_builder import prepare_folder

    listing = prepare_folder(args.folder, args.name, Path(args.dir))
    sizes = {split: len(files) for split, files in listing.splits.items()}
    classes = list(listing.classes)
    beside = f", {format_count(len(classes))} classes"
    _report(args, {"classes": classes}, sizes, beside, "resnet50")
    return 0


def _prepare_volumes(args: Namespace) -> int:
    from jaxdist.input.config import DataConfig
    from jaxdist.input.volume_builder import prepare_volumes

    keys = tuple(args.keys.split(",")) if args.keys else ()
    sizes = prepare_volumes(
        args.folder,
        args.name,
        Path(args.dir),
        renames=DataConfig(keys=keys).stored_names,
        size=_sides(args, "size"),
        chunk=_sides(args, "chunk"),
    )
    _report(args, {}, sizes, "", "unet3d")
    return 0


def _sides(args: Namespace, option: str) -> tuple[int, ...]:
    """Read the sizes of an option: `16,128,128`."""
    text = getattr(args, option)
    if not text:
        return ()
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise BadInput(
            f"--{option} {text} is no size",
            rule="a size has a number for each dim, from 1",
            values=f"--{option} {text}",
            remedy=f"--{option} 128,128,128",
        )
    return tuple(map(int, words))


def _report(
    args: Namespace,
    found: dict[str, list[str]],
    sizes: dict[str, int],
    beside: str,
    network: str,
) -> None:
    """Say what was written, and how it is trained on."""
    home = str(Path(args.dir, args.name))
    if args.json:
        print_json({"data": args.name, "path": home, **found, **sizes})
        return
    out = console()
    said = ", ".join(f"{format_count(size)} {split}" for split, size in sizes.items())
    out.print(f"{home}    {said}{beside}")
    # The default folder is where `train` looks anyhow.
    elsewhere = f" data.dir={args.dir}" * (args.dir != "data")
    print_next_commands(
        out, f"jaxdist train {network} data.name={args.name}{elsewhere}"
    )
