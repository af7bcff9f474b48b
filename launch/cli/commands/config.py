"""`jaxdist config EXPERIMENT`: every value a run would have, and who set it."""

from argparse import Namespace
from typing import TYPE_CHECKING

from jaxdist.launch.cli.parser import CommandParser, add_experiment, add_json

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.config.provenance import ResolvedConfig

summary = "print every value of an experiment, and who set it"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides."""
    add_experiment(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Print the resolved tree."""
    from jaxdist.launch.config.resolve import resolve
    from jaxdist.launch.config.tree import values
    from jaxdist.launch.terminal.console import console, print_json

    resolved = resolve(args.experiment, args.overrides)
    if args.json:
        rows = {
            key: {"value": value, "by": resolved.origins[key]}
            for key, value in values(resolved.config).items()
        }
        print_json({"experiment": resolved.source, "values": rows})
    else:
        _print_tree(console(), resolved)
    return 0


def _print_tree(out: "Console", resolved: "ResolvedConfig") -> None:
    from jaxdist.launch.config.tree import values
    from jaxdist.launch.config.value_text import write_value
    from jaxdist.launch.terminal.console import marks, print_next

    now, signs = values(resolved.config), marks(out)
    default = values(type(resolved.config)(name=""))
    width = max(map(len, now))
    out.print(_finding(resolved) + "\n")
    group = ""
    for key, value in now.items():
        if key.rpartition(".")[0] != group:
            group = key.rpartition(".")[0]
            out.print()
        by = resolved.origins[key]
        was = f"   (default {write_value(default[key])})" if default[key] != "" else ""
        line = f"  {signs.origin(by)} {key:{width}}  {write_value(value)}"
        changed = by != "default" and value != default[key]
        out.print((line + was * changed).rstrip(), soft_wrap=True)
    legend = [
        f"{signs.origin(by)} {by}" for by in ("default", "experiment", "command line")
    ]
    out.print("\n  " + "   ".join(legend) + "\n")
    print_next(out, f"jaxdist train {resolved.source}")


def _finding(resolved: "ResolvedConfig") -> str:
    own = len(resolved.set_by("experiment"))
    typed = len(resolved.set_by("command line"))
    said = f"{len(resolved.origins)} values, {own} by the experiment"
    return f"{resolved.source}    {said}" + f", {typed} by the command line" * bool(
        typed
    )
