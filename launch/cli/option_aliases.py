"""Options that had another name before: old spellings still work, hidden from help."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config.aliases import both_names_error, rename_overrides

OPTION_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--back-after": "--rejoin-after",
        "--factors": "--protocol-overheads",
        "--form": "--cost-convention",
        "--group": "--microbatches-per-update",
        "--largest": "--max-size",
        "--lossy": "--compressors",
        "--mitigate": "--contention-search",
        "--more": "--allow-many-constants",
        "--noisy": "--allow-noisy",
        "--pace": "--synchronization",
        "--per-host": "--ranks-per-host",
        "--place": "--placement",
        "--q": "--exchange-fraction",
        "--reduce": "--algorithms",
        "--sharing": "--bandwidth-sharing",
    }
)
"""New option by old option. An old one is an alias in commands that take the new one
and have no option of the old name: `--group` of `simulate` is another thing."""


def rename_words(
    parser: CommandParser, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return a command's words under current names, and the names that were old.

    Args:
        parser: of the command.
        words: options, keys and positional words; those behind `--` stay as they are,
            since they are another command's.

    Raises:
        BadInput: an option or a key under its old and its new name.
    """
    end = words.index("--") if "--" in words else len(words)
    own, found = rename_overrides(words[:end])
    known = parser.option_names
    given = {word.partition("=")[0] for word in own}
    for old, new in OPTION_ALIASES.items():
        if old not in given or new not in known or old in known:
            continue
        if new in given:
            raise both_names_error(old, new)
        found[old] = new
    pairs = [word.partition("=") for word in own]
    renamed = [
        f"{found.get(name, name)}{equals}{value}" for name, equals, value in pairs
    ]
    return [*renamed, *words[end:]], found


def rename_hint(renamed: Mapping[str, str]) -> str:
    """Return the line that names new spellings; empty where none is old.

    >>> rename_hint({"--noisy": "--allow-noisy"})
    'renamed: --noisy is now --allow-noisy'
    """
    told = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
    return f"renamed: {told}" if told else ""
