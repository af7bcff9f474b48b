"""`jaxdist profile MODEL`: what each layer costs, and where the network may be cut."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    check_output_folder,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jaxdist.core.profile import LayerProfile, Profile

summary = "print what each layer of a network costs, and where it may be cut"


def add_arguments(parser: CommandParser) -> None:
    """Take a network and overrides."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name of the model registry, or an experiment by name or file",
    )
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=(),
        help="batch (1), input.size (what the network was made for, or the "
        "experiment's data), precision (float32), and the model. keys of "
        "`jaxdist config EXPERIMENT`",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write the JSON as well, for `jaxdist plan stages --profile FILE`",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Read the profile, write it where that was asked for, and print it."""
    from jaxdist.launch.terminal.console import console, print_json
    from jaxdist.launch.training.job.abstract_model import (
        load_profile_config,
        profile_model,
    )

    if args.output:
        check_output_folder(args.output)
    profile = profile_model(*load_profile_config(args.model, args.overrides))
    if args.output:
        args.output.write_text(profile.to_json(), encoding="utf-8")
    if args.json:
        print_json(profile.tree())
    else:
        words = " ".join((args.model, *args.overrides))
        _print_profile(console(), profile, words)
    return 0


def _print_profile(out: "Console", profile: "Profile", words: str) -> None:
    from jaxdist.launch.terminal.console import print_next_commands, print_table

    for line in _total_lines(profile):
        out.print(line, soft_wrap=True)
    out.print()
    print_table(out, _layer_table(profile))
    out.print(f"  cuts     {_cut_line(profile)}\n", soft_wrap=True)
    print_next_commands(out, f"jaxdist profile {words} -o {profile.model}.json")


def _total_lines(profile: "Profile") -> Iterable[str]:
    """Say the totals: the finding, and a line each for what is kept and done."""
    from jaxdist.core.text.formatting import format_count, format_size

    samples = f"{format_count(profile.batch)} sample{'s' * (profile.batch > 1)}"
    yield f"{profile.model}    {', '.join(profile.inputs)}"
    yield (
        f"  keeps    {format_count(profile.parameters)} parameters, "
        f"{format_size(profile.parameter_bytes)}; "
        f"{format_size(profile.state_bytes)} of running statistics"
    )
    yield (
        f"  does     {format_size(profile.flops, 'FLOP')} for {samples}: "
        f"{format_size(profile.flops_forward, 'FLOP')} forward, "
        f"{format_size(profile.flops_backward, 'FLOP')} backward"
    )
    yield f"  makes    {format_size(profile.output_bytes)} of activations"


def _layer_table(profile: "Profile") -> "Table":
    """Lay out a row a block in bold, its layers below it by their path in it."""
    from jaxdist.core.text.formatting import format_count
    from jaxdist.launch.terminal.console import make_table
    from jaxdist.launch.terminal.number_column import NumberColumn

    work = NumberColumn(max((row.flops for row in profile.layers), default=0), "FLOP")
    made = NumberColumn(
        max((row.output_bytes for row in profile.layers), default=0), "B"
    )
    heads = (
        "parameters",
        f"forward, {work.unit}",
        f"backward, {work.unit}",
        f"output, {made.unit}",
    )
    rows = make_table("layer", *heads, "cut after", right=heads)

    def add(
        name: str, row: "LayerProfile | Profile", cut: str = "", style: str = ""
    ) -> None:
        numbers = work.format(row.flops_forward), work.format(row.flops_backward)
        size = made.format(row.output_bytes)
        rows.add_row(
            name, format_count(row.parameters), *numbers, size, cut, style=style
        )

    for block in profile.blocks:
        add(block.name, block, "yes" if block.cut_after else "", "this")
        for row in profile.layers:
            if row.block == block.name:
                inside = row.name.removeprefix(block.name).removeprefix(".")
                add(f"  {inside or 'between its layers'}", row)
    for row in profile.layers:
        if not row.block:
            add(row.name, row)
    rows.add_section()
    add("total", profile, style="this")
    return rows


def _cut_line(profile: "Profile") -> str:
    if profile.note:
        return profile.note
    blocks = len(profile.blocks)
    return f"{blocks - 1}, between any two of its {blocks} blocks"
