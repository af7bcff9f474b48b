"""Overrides: `key.sub=value` words that change single values of an experiment."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.launch.config.aliases import rename_overrides
from jaxdist.launch.config.tree import (
    describe_type,
    flatten_config,
    format_value,
    key_types,
    literal_choices,
    nearest_key,
    parse_value,
    replace_values,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def apply_config_overrides(
    config: T, overrides: Sequence[str], *, experiment: str, list_command: str = ""
) -> tuple[T, list[str]]:
    """Apply overrides to a tree; where a key comes twice the last one holds.

    Args:
        config: a tree of frozen dataclasses.
        overrides: `key.sub=value`, one a word.
        experiment: the experiment's name, for the remedies.
        list_command: the command that lists the keys; empty names `jaxdist config
        SOURCE`.

    Returns:
        The changed tree and the keys that were set.

    Raises:
        BadInput: words that cannot be used, all of them together.
    """
    # Types come from the class, so a value that is None now still has the type of what
    # it may be.
    known, values = key_types(type(config)), flatten_config(config)
    listing = f"list them with: {list_command or f'jaxdist config {experiment}'}"
    changes: dict[str, Any] = {}
    errors: list[BadInput] = []
    # Scripts may still have keys under their old names.
    words, _ = rename_overrides(overrides)
    for word in words:
        key, equals, text = word.partition("=")
        near = nearest_key(key, known)
        below = [name for name in known if name.startswith(key + ".")]
        if not equals:
            error = BadInput(
                f"{word} changes nothing",
                rule="an override is key=value, without spaces",
                remedy=f"did you mean {near}=VALUE?" if near else listing,
            )
        elif key in known:
            try:
                changes[key] = parse_value(text, known[key])
                continue
            except ValueError:
                error = BadInput(
                    f"{key} cannot be {text or 'empty'}",
                    rule=f"{key} is {describe_type(known[key])}",
                    values=f"{key} = {text} (command line)",
                    remedy=_suggest_override(key, text, known[key], values[key]),
                )
        elif below:
            error = BadInput(
                f"{key} is a group of keys",
                rule="an override sets one value",
                values=f"its keys: {', '.join(n[len(key) + 1 :] for n in below)}",
                remedy=f"{below[0]}={text or 'VALUE'}",
            )
        else:
            meant = f"did you mean {near}? " if near else ""
            error = BadInput(f"no key {key}", remedy=meant + listing)
        errors.append(error)
    # All words are told together; what the dataclasses refuse comes only after that,
    # since a rule over several values says little while one of them is unreadable.
    raise_all(errors)
    return replace_values(config, changes), list(changes)


def format_override(key: str, value: Any) -> str:
    """Write an override as it is typed into a shell.

    >>> format_override("run.name", "first try"), format_override("data.batch", 60)
    ("'run.name=first try'", 'data.batch=60')
    """
    return shlex.quote(f"{key}={format_value(value)}")


def _suggest_override(key: str, text: str, value_type: Any, current: Any) -> str:
    """Return an override that works in place of one that does not."""
    near = did_you_mean(text, literal_choices(value_type))
    if near:
        return f"did you mean {key}={near}?"
    # `epochs=1e3` or `data.batch=64.0` where a whole number is asked for.
    if value_type is int:
        try:
            return format_override(key, round(float(text)))
        except (ValueError, OverflowError):
            pass
    return format_override(key, current)
