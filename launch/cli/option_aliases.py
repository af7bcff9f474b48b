"""Other spellings of options and settings: old ones, and those that everybody types.

`--epochs 2`, `--lr=0.1` and `lr=0.1` are settings of an experiment, `epochs=2` and
`optim.lr=0.1`. None of these spellings is in a help.
"""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config.aliases import (
    KEY_ALIASES,
    SHORT_KEYS,
    STEP_KEYS,
    both_names_error,
    rename_overrides,
)
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.tree import key_types

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


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The words of a command, read."""

    args: Namespace
    """What the command takes."""
    words: tuple[str, ...]
    """The words under current names."""
    hint: str
    """Which words have another name now, or are which setting; empty where none is."""


def read_words(parser: CommandParser, words: Sequence[str]) -> CommandLine:
    """Read the words of a command, whatever spelling they have.

    Args:
        parser: of the command.
        words: what was typed behind the command.

    Raises:
        BadInput: a word, or a value in the file of `--config`, that cannot be used.
    """
    own, keys = option_overrides(parser, words)
    own, renamed = rename_words(parser, own)
    if any(word.partition("=")[0] == "--hf" for word in own):
        # The file names a network, and an experiment has the name of each.
        parser.split_form(own)[0].make_optional("experiment")
    args = parser.parse(own)
    if getattr(args, "config_file", None):
        from jaxdist.launch.config.config_file import read_config_file

        experiment = getattr(args, "experiment", None) or "EXPERIMENT"
        # The last value of a key holds: what is typed comes behind the file.
        values = read_config_file(args.config_file, experiment=experiment)
        args.overrides = [*values, *args.overrides]
    if getattr(args, "hf_config", None):
        from jaxdist.models.pretrained.config_json import (
            model_settings,
            read_config_json,
        )

        found = model_settings(read_config_json(args.hf_config))
        # Left out, the first override stands where it would.
        if args.experiment is None or "=" in args.experiment:
            args.overrides = [*filter(None, [args.experiment]), *args.overrides]
            args.experiment = found["name"]
        sizes = [f"model.{key}={value}" for key, value in found.items()]
        args.overrides = [*sizes, *args.overrides]
    lines = filter(None, (key_hint(keys), rename_hint(renamed)))
    return CommandLine(args=args, words=tuple(own), hint="\n".join(lines))


def option_overrides(
    parser: CommandParser, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return words with settings that were typed as options, or by a short name, as
    overrides; and the key that each of these spellings is.

    Args:
        parser: of the command.
        words: what was typed behind it; those behind `--` stay as they are.

    Raises:
        BadInput: a setting without its value.
    """
    end = words.index("--") if "--" in words else len(words)
    if not parser.split_form(words[:end])[0].takes_keys:
        return list(words), {}
    types, known = key_types(Experiment), parser.option_names
    made: list[str] = []
    found: dict[str, str] = {}
    rest = list(words[:end])
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        key = None
        if not name.startswith("-"):
            key = SHORT_KEYS.get(name) if equals else None
        # A command's own option is that, and no key.
        elif name not in known and OPTION_ALIASES.get(name) not in known:
            key = _key_of_option(name, types)
        if key is None:
            made.append(word)
            continue
        if not equals:
            value = _take_value(name, rest, is_flag=types.get(key) is bool)
        made.append(f"{key}={value}")
        # Of what is no key, such as `max_steps`, the error will speak.
        if key in types:
            found[name] = key
    return [*made, *words[end:]], found


def _key_of_option(option: str, known: Mapping[str, object]) -> str | None:
    """Return the key that an option names, `--batch-size` or `--optim.lr`, if any."""
    typed = option.removeprefix("--")
    # `--model` is a group of keys: the override says so, with its keys.
    groups = {key.partition(".")[0] for key in known if "." in key}
    for name in (typed, typed.replace("-", "_")):
        if name in SHORT_KEYS:
            return SHORT_KEYS[name]
        if name in (*known, *KEY_ALIASES, *STEP_KEYS, *groups):
            return name
    return None


def _take_value(option: str, rest: list[str], *, is_flag: bool) -> str:
    """Take the value of an option from the words behind it.

    Raises:
        BadInput: there is none.
    """
    if is_flag and not (rest and rest[0].lower() in ("true", "false")):
        return "True"
    # A number below zero is a value, another option is not.
    if not rest or re.match(r"-(?![\d.])", rest[0]):
        raise BadInput(
            f"{option} has no value",
            rule="a setting of an experiment is --KEY VALUE or KEY=VALUE",
            remedy=f"{option} VALUE",
        )
    return rest.pop(0)


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


def key_hint(keys: Mapping[str, str]) -> str:
    """Return the line that says which settings were meant; empty where none is.

    >>> key_hint({"--lr": "optim.lr", "bs": "data.batch"})
    'keys:     --lr is optim.lr, bs is data.batch'
    """
    told = ", ".join(f"{typed} is {key}" for typed, key in keys.items())
    return f"keys:     {told}" if told else ""


def rename_hint(renamed: Mapping[str, str]) -> str:
    """Return the line that names new spellings; empty where none is old.

    >>> rename_hint({"--noisy": "--allow-noisy"})
    'renamed: --noisy is now --allow-noisy'
    """
    told = ", ".join(f"{old} is now {new}" for old, new in renamed.items())
    return f"renamed: {told}" if told else ""
