"""`jaxdist config EXPERIMENT`: every value a run would have, and who set it."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.config.resolve import ResolvedConfig

summary = "print every value of an experiment, and who set it"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides."""
    add_experiment_arguments(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the resolved tree."""
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.config.tree import flatten_config
    from jaxdist.launch.terminal.console import console, print_json

    resolved = resolve_config(args.experiment, args.overrides)
    if args.json:
        rows = {
            key: {"value": value, "by": resolved.sources[key]}
            for key, value in flatten_config(resolved.config).items()
        }
        print_json({"experiment": resolved.experiment, "values": rows})
    else:
        _print_values(console(), resolved)
    return 0


def _print_values(out: "Console", resolved: "ResolvedConfig") -> None:
    from jaxdist.launch.config.tree import flatten_config, format_value
    from jaxdist.launch.terminal.console import console_glyphs, print_next_commands

    now, signs = flatten_config(resolved.config), console_glyphs(out)
    default = flatten_config(type(resolved.config)(name=""))
    width = max(map(len, now))
    out.print(_summary_line(resolved) + "\n")
    group = ""
    for key, value in now.items():
        if key.rpartition(".")[0] != group:
            group = key.rpartition(".")[0]
            out.print()
        by = resolved.sources[key]
        was = f"   (default {format_value(default[key])})" if default[key] != "" else ""
        line = f"  {signs.source_glyph(by)} {key:{width}}  {format_value(value)}"
        changed = by != "default" and value != default[key]
        out.print((line + was * changed).rstrip(), soft_wrap=True)
    legend = [
        f"{signs.source_glyph(by)} {by}"
        for by in ("default", "experiment", "command line")
    ]
    out.print("\n  " + "   ".join(legend) + "\n")
    print_next_commands(out, f"jaxdist train {resolved.experiment}")


def _summary_line(resolved: "ResolvedConfig") -> str:
    own = len(resolved.keys_from("experiment"))
    typed = len(resolved.keys_from("command line"))
    said = f"{len(resolved.sources)} values, {own} by the experiment"
    return f"{resolved.experiment}    {said}" + f", {typed} by the command line" * bool(
        typed
    )
