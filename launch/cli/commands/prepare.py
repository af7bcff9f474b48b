"""`jaxdist prepare FOLDER --name NAME`: a folder of images as a data set.

`jaxdist prepare text FILE_OR_FOLDER`: documents as tokens.
"""

from argparse import Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count
from jaxdist.launch.cli.parser import CommandParser, add_json_option
from jaxdist.launch.terminal.console import console, print_json, print_next_commands

summary = "write a folder of images, or texts, as a data set to train on"
example = "photos --name photos"
_TEXT_OPTIONS = ("vocabulary", "tokenizer", "end", "separator", "held_out")


def add_arguments(parser: CommandParser) -> None:
    """Take what is read, the name, and the folder of all data sets."""
    add = parser.add_argument
    add(
        "source",
        nargs="+",
        metavar="FOLDER",
        help="has train/CLASS/*.jpg and test/CLASS/*.jpg; or two words: text, and a "
        ".jsonl file, a folder of .txt files, or one text",
    )
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
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Write the data set and say what is in it."""
    kind, *rest = args.source
    if kind == "text" and len(rest) == 1:
        return _prepare_text(args, Path(rest[0]))
    given = [key for key in _TEXT_OPTIONS if getattr(args, key) is not None]
    if rest or given or args.name is None:
        option = f"--{given[0].replace('_', '-')}" if given else "no --name"
        raise BadInput(
            "there is nothing to prepare",
            rule="prepare FOLDER --name NAME takes images, prepare text FILE texts",
            values=" ".join(args.source) if rest else option,
            remedy=f"jaxdist prepare text {args.source[-1]}"
            if rest or given
            else f"jaxdist prepare {kind} --name photos",
        )
    from jaxdist.input.folder_builder import prepare_folder

    listing = prepare_folder(kind, args.name, Path(args.dir))
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
