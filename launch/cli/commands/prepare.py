"""`jaxdist prepare FOLDER --name NAME`: images or volumes as a data set.

`jaxdist prepare text FILE_OR_FOLDER`: documents as tokens.
"""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import CommandParser, add_json_option
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

summary = "write images, volumes or texts as a data set to train on"
example = "photos --name photos"
_TEXT_OPTIONS = ("vocabulary", "tokenizer", "end", "separator", "held_out")


def add_arguments(parser: CommandParser) -> None:
    """Take what is read, the name, the folder of all data sets, and how volumes lie."""
    parser.add_argument(
        "source",
        nargs="+",
        metavar="FOLDER",
        help="has train/CLASS/*.jpg and test/CLASS/*.jpg; or volumes, as data.name "
        "takes them: nifti:FOLDER, hdf5:FILE, numpy:FOLDER, zarr:STORE; or two words: "
        "text, and a .jsonl file, a folder of .txt files, or one text",
    )
    add = parser.add_argument
    add("--name", help="what data.name will take; of a text by itself that of the file")
    add("--dir", default="data", help="folder of all data sets, data.dir (data)")
    add(
        "--vocabulary",
        type=int,
        metavar="N",
        help="tokens of a byte-level BPE that is trained on the text (8192)",
    )
    add(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json to take instead, of Hugging Face's format",
    )
    add("--end", metavar="TOKEN", help="its token for the end of a document")
    add(
        "--separator",
        metavar="TEXT",
        help=r"between the documents of one file; \n is a line end (<|endoftext|>)",
    )
    add(
        "--held-out",
        type=float,
        metavar="SHARE",
        help="share of the documents that are held out (0.1)",
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
    folder, *rest = args.source
    # A single word `text` is a folder of that name.
    if folder == "text" and len(rest) == 1:
        return _prepare_text(args, Path(rest[0]))
    given = [key for key in _TEXT_OPTIONS if getattr(args, key) is not None]
    if rest or given or args.name is None:
        option = f"--{given[0].replace('_', '-')}" if given else "no --name"
        raise BadInput(
            "there is nothing to prepare",
            rule="prepare FOLDER --name NAME takes images or volumes, prepare text "
            "FILE texts",
            values=" ".join(args.source) if rest else option,
            remedy=f"jaxdist prepare text {args.source[-1]}"
            if rest or given
            else f"jaxdist prepare {folder} --name photos",
        )
    args.folder = folder
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


def _prepare_text(args: Namespace, path: Path) -> int:
    """Write documents as tokens, and say how many there are."""
    if args.tokenizer and args.vocabulary is not None:
        raise BadInput(
            "a vocabulary is trained or taken, not both",
            rule="--tokenizer has a vocabulary of its own",
            values=f"--tokenizer {args.tokenizer} --vocabulary {args.vocabulary}",
            remedy=f"--tokenizer {args.tokenizer}",
        )
    from jaxdist.input.token_files import prepare_text

    asked = {
        "vocabulary": args.vocabulary,
        "tokenizer": Path(args.tokenizer) if args.tokenizer else None,
        "end": args.end,
        # As it is typed into a shell, where a line end is two characters.
        "separator": args.separator
        and args.separator.replace("\\n", "\n").replace("\\t", "\t"),
        "held_out": args.held_out,
    }
    made = prepare_text(
        path,
        Path(args.dir, args.name or path.stem),
        **{key: value for key, value in asked.items() if value is not None},
    )
    if args.json:
        print_json(
            {
                "data": f"tokens:{made.folder}",
                "path": str(made.folder),
                "vocabulary": made.about.vocabulary,
                "documents": made.documents,
                "tokens": made.tokens,
                "bytes": made.text_bytes,
                "empty": made.empty,
            }
        )
        return 0
    out, tokens = console(), sum(made.tokens.values())
    out.print(
        f"{made.folder}    {format_count(made.documents['train'])} documents, "
        f"{format_count(made.documents['test'])} held out, {format_count(made.empty)} "
        "empty ones left out"
    )
    out.print(
        f"{format_count(tokens)} tokens of {format_count(made.about.vocabulary)}, "
        f"{made.text_bytes / max(tokens, 1):.2f} bytes each"
    )
    print_next_commands(out, f"jaxdist train characters data.name=tokens:{made.folder}")
    return 0
