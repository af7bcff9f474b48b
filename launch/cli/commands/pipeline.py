"""`jaxdist pipeline draw`: a schedule of a pipeline, drawn and counted."""

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import CommandParser, add_json_option

summary = "draw a schedule of a pipeline, with its ticks, bubble and memory"


def add_arguments(parser: CommandParser) -> None:
    """Take `draw_text`, a schedule and its numbers."""
    parser.add_argument("action", choices=("draw",), help="draw: one row a device")
    parser.add_argument(
        "--schedule",
        metavar="NAME",
        default="1f1b",
        help="gpipe, 1f1b, interleaved, eager-1f1b, zb-h1, pipedream or pipedream-2bw "
        "(1f1b)",
    )
    _add_int_option(parser, "--stages", "S", "devices in a row (4)")
    parser.add_argument(
        "--microbatches", metavar="M", type=int, default=8, help="in all (8)"
    )
    _add_int_option(
        parser, "--chunks", "V", "interleaved, eager-1f1b: chunks a device (1)"
    )
    parser.add_argument(
        "--replicas",
        metavar="R,R,...",
        type=_parse_numbers,
        help="pipedream: devices of each stage (1 for each of 4 stages)",
    )
    parser.add_argument(
        "--vertical-sync",
        action="store_true",
        default=None,
        help="pipedream: a microbatch takes the same weights on all stages",
    )
    _add_int_option(
        parser, "--group", "G", "pipedream-2bw: microbatches of an update (S)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write an SVG file as well"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Draw and count."""
    from jaxdist.launch.analysis.pipeline_schedule import (
        schedule_from_options,
        schedule_summary,
        schedule_tree,
    )
    from jaxdist.launch.terminal.console import (
        console,
        console_glyphs,
        print_json,
        print_next_commands,
    )
    from jaxdist.pipeline.draw_svg import draw_svg
    from jaxdist.pipeline.draw_text import draw_text

    table = schedule_from_options(args)
    if args.output:
        _write_svg(args.output, draw_svg(table))
    if args.json:
        print_json(schedule_tree(table))
        return 0
    out = console()
    out.print(f"{table.title}\n")
    signs = console_glyphs(out)
    drawn = draw_text(
        table, width=out.width - 2, idle=signs.idle, ellipsis=signs.ellipsis
    )
    for line in drawn.split():
        out.print("  ", line, sep="", soft_wrap=True)
    out.print(f"\n  {schedule_summary(table)}\n", soft_wrap=True)
    print_next_commands(out, *_next_commands(args))
    return 0


def _add_int_option(parser: CommandParser, name: str, metavar: str, what: str) -> None:
    parser.add_argument(name, metavar=metavar, type=int, help=what)


def _parse_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"not numbers with commas: {text}") from None


def _write_svg(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise BadInput(
            f"no folder {path.parent}",
            rule="the drawing is written into a folder that exists",
            values=f"--output {path}",
            remedy=f"-o {path.name}",
        )
    path.write_text(text, encoding="utf-8")


def _next_commands(args: Namespace) -> tuple[str, ...]:
    """Return another schedule to compare with, and this one as a picture."""
    other = "gpipe" if args.schedule == "1f1b" else "1f1b"
    own = [
        f"--{name.replace('_', '-')} {value}"
        for name in ("stages", "microbatches", "chunks", "group")
        if (value := getattr(args, name)) is not None
    ]
    if args.replicas:
        own.append(f"--replicas {','.join(map(str, args.replicas))}")
    own += ["--vertical-sync"] * bool(args.vertical_sync)
    shared = [word for word in own if word.startswith(("--stages", "--micro"))]
    compare = " ".join(("jaxdist pipeline draw --schedule", other, *shared))
    same = " ".join(("jaxdist pipeline draw --schedule", args.schedule, *own))
    return (compare,) if args.output else (compare, f"{same} -o {args.schedule}.svg")
