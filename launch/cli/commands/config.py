"""`jaxdist config EXPERIMENT`: every value a run would have, and who set it."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import (
    console,
    console_glyphs,
    print_json,
    print_next_commands,
)

summary = "print every value of an experiment, and who set it"
example = "digits optim.lr=0.1"


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment and overrides."""
    add_experiment_arguments(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the resolved tree."""
    from jaxdist.launch.config.resolve import SETTING_SOURCE_NAMES, resolve_config
    from jaxdist.launch.config.tree import flatten_config, format_value

    resolved = resolve_config(args.experiment, args.overrides)
    now, sources = flatten_config(resolved.config), resolved.sources
    if args.json:
        rows = {k: {"value": value, "by": sources[k]} for k, value in now.items()}
        print_json({"experiment": resolved.experiment, "values": rows})
        return 0
    out = console()
    signs, width = console_glyphs(out), max(map(len, now))
    # The defaults are those of the class: an experiment is an instance of it.
    default = flatten_config(type(resolved.config)(name=""))
    typed = len(resolved.keys_from("command line"))
    out.print(
        f"{resolved.experiment}    {len(sources)} values, "
        f"{len(resolved.keys_from('experiment'))} by the experiment"
        + f", {typed} by the command line" * bool(typed)
        + "\n"
    )
    group = ""
    for key, value in now.items():
        if key.rpartition(".")[0] != group:
            group = key.rpartition(".")[0]
            out.print()
        by, usual = sources[key], default[key]
        line = f"  {signs.source_glyph(by)} {key:{width}}  {format_value(value)}"
        # What is empty by default is what every experiment must give, as its name.
        if by != "default" and usual not in (value, ""):
            line += f"   (default {format_value(usual)})"
        out.print(line.rstrip(), soft_wrap=True)
    kinds = SETTING_SOURCE_NAMES
    legend = "   ".join(f"{signs.source_glyph(by)} {by}" for by in kinds)
    out.print(f"\n  {legend}\n")
    print_next_commands(out, f"jaxdist train {resolved.experiment}")
    return 0
