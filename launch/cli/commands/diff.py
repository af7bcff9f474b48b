"""`jaxdist diff RUN_A RUN_B`: what two runs set differently."""

from argparse import Namespace

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_json_option,
    add_run_argument,
    add_runs_folder_option,
)
from jaxdist.launch.terminal.console import (
    console,
    console_glyphs,
    make_table,
    print_json,
    print_table,
)

summary = "show what two runs set differently"


def add_arguments(parser: CommandParser) -> None:
    """Take two runs."""
    add_run_argument(parser, "run_a")
    add_run_argument(parser, "run_b")
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the keys and the package versions that differ."""
    from jaxdist.launch.config.tree import format_value
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import (
        changed_keys,
        changed_packages,
        read_config_lock,
    )

    runs = [find_run(name, folder=args.dir) for name in (args.run_a, args.run_b)]
    old, new = (read_config_lock(run) for run in runs)
    # Packages too: results differ between versions of XLA under the same settings.
    keys = changed_keys(old.resolved.config, new.resolved.config)
    packages = changed_packages(old, new)
    if args.json:
        found = {"keys": keys, "packages": packages}
        print_json(
            {"runs": [str(run.path) for run in runs]}
            | {
                kind: {c.key: {"a": c.old, "b": c.new} for c in changes}
                for kind, changes in found.items()
            }
        )
        return 0
    out = console()
    out.print(
        f"{len(keys)} keys and {len(packages)} packages differ\n"
        if keys or packages
        else "the configurations and the packages are the same"
    )
    if not keys and not packages:
        return 0
    signs = console_glyphs(out)
    rows = make_table("key", *(run.name for run in runs))
    for change in keys:
        origins = [lock.resolved.sources[change.key] for lock in (old, new)]
        pair = zip(origins, (change.old, change.new))
        rows.add_row(
            change.key,
            *(f"{signs.source_glyph(by)} {format_value(v)}" for by, v in pair),
        )
    for change in packages:
        rows.add_row(f"package {change.key}", f"{change.old}", f"{change.new}")
    print_table(out, rows)
    return 0
