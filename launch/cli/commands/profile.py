"""`jaxdist profile MODEL`: what each layer costs, and where the network may be cut."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.core.files import check_output, write_output
from jaxdist.core.text.formatting import format_count, format_size
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_output_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)
from jaxdist.launch.terminal.run_summary import NumberColumn

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.core.profile import LayerProfile, Profile

summary = "print what each layer costs, and where a network may be cut"
example = "resnet50 batch=32"


def add_arguments(parser: CommandParser) -> None:
    """Take a network and overrides."""
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a name of the model registry, or an experiment by name or file",
    )
    add(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=(),
        help="batch (1), input.size (what the network was made for, or the "
        "experiment's data), precision (float32), and the model. keys of "
        "`jaxdist config EXPERIMENT`",
    )
    add_output_option(
        parser, "write the JSON as well, for `jaxdist plan stages --profile FILE`"
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Read the profile, write it where that was asked for, and print it."""
    from jaxdist.launch.training.job.abstract_model import (
        load_profile_config,
        profile_model,
    )

    if args.output:
        check_output(args.output, force=args.force)
    profile = profile_model(*load_profile_config(args.model, args.overrides))
    if args.output:
        write_output(args.output, profile.to_json(), force=args.force)
    if args.json:
        print_json(profile.tree())
    else:
        words = " ".join((args.model, *args.overrides))
        _print_profile(console(), profile, words)
    return 0


def _print_profile(out: "Console", profile: "Profile", words: str) -> None:
    """Print the totals, then each block in bold with its layers below it."""
    samples = f"{format_count(profile.batch)} sample{'s' * (profile.batch > 1)}"
    out.print(
        f"{profile.model}    {', '.join(profile.inputs)}\n"
        f"  keeps    {format_count(profile.parameters)} parameters, "
        f"{format_size(profile.parameter_bytes)}; "
        f"{format_size(profile.state_bytes)} of running statistics\n"
        f"  does     {format_size(profile.flops, 'FLOP')} for {samples}: "
        f"{format_size(profile.flops_forward, 'FLOP')} forward, "
        f"{format_size(profile.flops_backward, 'FLOP')} backward\n"
        f"  makes    {format_size(profile.output_bytes)} of activations\n",
        soft_wrap=True,
    )
    layers, blocks = profile.layers, profile.blocks
    # A column has one unit, that of its largest number, so that numbers compare.
    work = NumberColumn(max((row.flops for row in layers), default=0), "FLOP")
    made = NumberColumn(max((row.output_bytes for row in layers), default=0), "B")
    work_heads = f"forward, {work.unit}", f"backward, {work.unit}"
    heads = ("parameters", *work_heads, f"output, {made.unit}")
    table = make_table("layer", *heads, "cut after", right=heads)

    # Rows of blocks, layers and the total have the same numbers.
    def add(
        name: str, row: "LayerProfile | Profile", cut: str = "", style: str = ""
    ) -> None:
        flops = work.format(row.flops_forward), work.format(row.flops_backward)
        size, count = made.format(row.output_bytes), format_count(row.parameters)
        table.add_row(name, count, *flops, size, cut, style=style)

    for block in blocks:
        add(block.name, block, "yes" if block.cut_after else "", "this")
        for row in layers:
            if row.block == block.name:
                # The path inside the block; work that is of no layer has none.
                inside = row.name.removeprefix(block.name).removeprefix(".")
                add(f"  {inside or 'between its layers'}", row)
    for row in layers:
        if not row.block:
            add(row.name, row)
    table.add_section()
    add("total", profile, style="this")
    print_table(out, table)
    between = f"{len(blocks) - 1}, between any two of its {len(blocks)} blocks"
    out.print(f"  cuts     {profile.note or between}\n", soft_wrap=True)
    print_next_commands(out, f"jaxdist profile {words} -o {profile.model}.json")
