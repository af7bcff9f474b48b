"""`jaxdist pipeline draw`: a schedule of a pipeline, drawn and counted."""

import re
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.launch.arguments import Parser, add_json

if TYPE_CHECKING:
    from jaxdist.pipeline.schedule import Schedule

summary = "draw a schedule of a pipeline, with its ticks, bubble and memory"


def add_arguments(parser: Parser) -> None:
    """Take `draw`, a schedule and its numbers."""
    parser.add_argument("action", choices=("draw",), help="draw: one row a device")
    parser.add_argument(
        "--schedule",
        metavar="NAME",
        default="1f1b",
        help="gpipe, 1f1b, interleaved or zb-h1 (1f1b)",
    )
    parser.add_argument(
        "--stages", metavar="S", type=int, default=4, help="devices in a row (4)"
    )
    parser.add_argument(
        "--microbatches", metavar="M", type=int, default=8, help="of a step (8)"
    )
    parser.add_argument(
        "--chunks",
        metavar="V",
        type=int,
        default=1,
        help="of the network on each device, for interleaved (1)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write an SVG file as well"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Draw and count."""
    from jaxdist.launch.console import console, marks, print_json, print_next
    from jaxdist.pipeline.draw import draw
    from jaxdist.pipeline.picture import picture

    table = _table(args)
    if args.output:
        _write(args.output, picture(table))
    if args.json:
        print_json(_tree(table))
        return 0
    out = console()
    out.print(f"{table.title}\n")
    signs = marks(out)
    drawn = draw(table, width=out.width - 2, idle=signs.idle, more=signs.more)
    for line in drawn.split():
        out.print("  ", line, sep="", soft_wrap=True)
    out.print(f"\n  {_finding(table)}\n", soft_wrap=True)
    print_next(out, *_next(args))
    return 0


def _table(args: Namespace) -> "Schedule":
    from jaxdist.pipeline.schedule import schedule

    try:
        return schedule(args.schedule, args.stages, args.microbatches, args.chunks)
    except BadInput as error:
        raise _in_options(error) from None


def _in_options(error: BadInput) -> BadInput:
    """Say what a schedule asks for in words that this command takes."""

    def typed(text: str) -> str:
        return re.sub(r"\b(\w+)=", r"--\1 ", text.replace("devices=", "stages="))

    return BadInput(
        error.what,
        rule=error.rule,
        values=typed(error.values),
        remedy=[typed(line) for line in error.remedy],
    )


def _finding(table: "Schedule") -> str:
    from jaxdist.core.units import percent

    holds = ", ".join(str(table.in_flight(d)) for d in range(table.devices))
    return (
        f"{table.length:,} ticks, {percent(table.idle)} of them idle; "
        f"in flight by device: {holds}"
    )


def _tree(table: "Schedule") -> dict[str, Any]:
    devices = range(table.devices)
    return {
        "schedule": table.name,
        "ticks": table.length,
        "idle": table.idle,
        "in_flight": [table.in_flight(device) for device in devices],
        "held": [table.held(device) for device in devices],
        "table": [[work and asdict(work) for work in row] for row in table.ticks],
    }


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise BadInput(
            f"no folder {path.parent}",
            rule="the drawing is written into a folder that exists",
            values=f"--output {path}",
            remedy=f"-o {path.name}",
        )
    path.write_text(text, encoding="utf-8")


def _next(args: Namespace) -> tuple[str, ...]:
    numbers = f"--stages {args.stages} --microbatches {args.microbatches}"
    other = "gpipe" if args.schedule == "1f1b" else "1f1b"
    compare = f"jaxdist pipeline draw --schedule {other} {numbers}"
    chunks = f" --chunks {args.chunks}" if args.chunks > 1 else ""
    own = f"jaxdist pipeline draw --schedule {args.schedule} {numbers}{chunks}"
    picture = () if args.output else (f"{own} -o {args.schedule}.svg",)
    return (compare, *picture)
