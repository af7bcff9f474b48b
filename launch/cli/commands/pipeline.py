"""`jaxdist pipeline draw`: a schedule of a pipeline, drawn and counted."""

from argparse import Namespace

from jaxdist.core.files import check_output, write_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_output_option,
    parse_int_list,
    query_from,
)
from jaxdist.launch.terminal.console import (
    console,
    console_glyphs,
    print_json,
    print_next_commands,
)

summary = "draw a schedule of a pipeline, with its ticks, bubble and memory"
example = "draw --schedule 1f1b --stages 4 --microbatches 8"


def add_arguments(parser: CommandParser) -> None:
    """Take `draw`, a schedule and its numbers."""
    add = parser.add_argument
    add("action", choices=("draw",), help="draw: one row a device")
    add(
        "--schedule",
        metavar="NAME",
        default="1f1b",
        help="gpipe, 1f1b, interleaved, eager-1f1b, zb-h1, pipedream or pipedream-2bw "
        "(1f1b)",
    )
    for option, metavar, what in (
        ("--stages", "S", "devices in a row (4)"),
        ("--chunks", "V", "interleaved, eager-1f1b: chunks a device (1)"),
        ("--microbatches-per-update", "G", "pipedream-2bw (S)"),
    ):
        add(option, metavar=metavar, type=int, help=what)
    add("--microbatches", metavar="M", type=int, default=8, help="in all (8)")
    add(
        "--replicas",
        metavar="R,R,...",
        type=parse_int_list,
        help="pipedream: devices of each stage (1 for each of 4 stages)",
    )
    # None, and not False: a schedule that does not take it refuses what was given.
    add(
        "--vertical-sync",
        action="store_true",
        default=None,
        help="pipedream: a microbatch takes the same weights on all stages",
    )
    add_output_option(parser, "write an SVG file as well")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Draw and count."""
    from jaxdist.launch.analysis.pipeline_schedule import (
        PipelineQuery,
        schedule_from_options,
        schedule_summary,
        schedule_tree,
    )
    from jaxdist.pipeline.draw_svg import draw_svg
    from jaxdist.pipeline.draw_text import draw_text

    query = query_from(args, PipelineQuery)
    table = schedule_from_options(query)
    if args.output:
        check_output(args.output, force=args.force)
        write_output(args.output, draw_svg(table), force=args.force)
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

    # Another schedule of as many stages and microbatches to compare with, which may not
    # take the other options; and this one as a picture.
    name, given = query.schedule, query.options
    other = "gpipe" if name == "1f1b" else "1f1b"
    both = ("--stages", "--microbatches")
    shared = "".join(f" {o}{value}" for o, value in given.items() if o in both)
    own = "".join(f" {option}{value}" for option, value in given.items())
    draw = "jaxdist pipeline draw --schedule"
    commands = [f"{draw} {other}{shared}", f"{draw} {name}{own} -o {name}.svg"]
    print_next_commands(out, *commands[: 1 if args.output else 2])
    return 0
