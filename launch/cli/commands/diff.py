"""`jaxdist diff RUN [RUN]`: what two runs set differently, and what one has changed."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.run_folder.lockfile import ConfigLock

summary = "show what two runs set differently, or one has changed"
example = "digits digits-2"


def add_arguments(parser: CommandParser) -> None:
    """Take a run, or two."""
    add_run_argument(parser, "run_a")
    parser.add_argument(
        "run_b",
        metavar="RUN_B",
        nargs="?",
        help="another one; without it, what was changed of the first from one attempt "
        "to the next",
    )
    add_runs_folder_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Print the keys and the package versions that differ."""
    from jaxdist.launch.run_folder.folder import find_run
    from jaxdist.launch.run_folder.lockfile import read_config_lock

    names = [args.run_a, *([args.run_b] if args.run_b else [])]
    runs = [find_run(name, folder=args.dir) for name in names]
    locks = [read_config_lock(run) for run in runs]
    if args.json:
        print_json(_tree(runs, locks))
        return 0
    out = console()
    if len(locks) == 2:
        _print_differences(out, runs, locks)
    for folder, lock in zip(runs, locks):
        _print_history(out, folder, lock, alone=len(locks) == 1)
    return 0


def _tree(runs: "list[RunFolder]", locks: "list[ConfigLock]") -> dict[str, Any]:
    from jaxdist.launch.run_folder.lockfile import changed_keys, changed_packages

    tree: dict[str, Any] = {"runs": [str(run.path) for run in runs]}
    if len(locks) == 2:
        old, new = locks
        found = {
            "keys": changed_keys(old.resolved.config, new.resolved.config),
            "packages": changed_packages(old, new),
        }
        tree |= {
            kind: {c.key: {"a": c.old, "b": c.new} for c in changes}
            for kind, changes in found.items()
        }
    tree["attempts"] = [
        [
            {
                "step": each.step,
                "time": each.time,
                "command": list(each.command),
                "changes": {
                    c.key: {"old": c.old, "new": c.new} for c in each.all_changes
                },
            }
            for each in lock.attempts
        ]
        for lock in locks
    ]
    return tree


def _print_differences(
    out: "Console", runs: "list[RunFolder]", locks: "list[ConfigLock]"
) -> None:
    from jaxdist.launch.config.tree import format_value
    from jaxdist.launch.run_folder.lockfile import changed_keys, changed_packages

    # Packages too: results differ between versions of XLA under the same settings.
    old, new = locks
    keys = changed_keys(old.resolved.config, new.resolved.config)
    packages = changed_packages(old, new)
    out.print(
        f"{len(keys)} keys and {len(packages)} packages differ\n"
        if keys or packages
        else "the configurations and the packages are the same"
    )
    if not keys and not packages:
        return
    signs = console_glyphs(out)
    rows = make_table("key", *(run.name for run in runs))
    for change in keys:
        origins = [lock.resolved.sources[change.key] for lock in locks]
        pair = zip(origins, (change.old, change.new))
        rows.add_row(
            change.key,
            *(f"{signs.source_glyph(by)} {format_value(v)}" for by, v in pair),
        )
    for change in packages:
        rows.add_row(f"package {change.key}", f"{change.old}", f"{change.new}")
    print_table(out, rows)


def _print_history(
    out: "Console", folder: "RunFolder", lock: "ConfigLock", *, alone: bool
) -> None:
    """Print what was changed of a run; where nothing was, only if it is alone."""
    from jaxdist.launch.config.tree import format_value
    from jaxdist.launch.terminal.run_summary import pluralize

    changed = sum(bool(each.all_changes) for each in lock.attempts)
    if not changed and not alone:
        return
    # A lock file of an older version has none, and its run had one.
    count = pluralize(max(len(lock.attempts), 1), "attempt")
    if not changed:
        out.print(f"{folder.name}: {count}, nothing was changed")
        return
    out.print(f"{folder.name} was changed in {changed} of {count}\n")
    rows = make_table("attempt", "from step", "key", "old", "new", right=("from step",))
    for number, each in enumerate(lock.attempts, start=1):
        for change in each.all_changes:
            old, new = format_value(change.old), format_value(change.new)
            rows.add_row(str(number), f"{each.step:,}", change.key, old, new)
    print_table(out, rows)
