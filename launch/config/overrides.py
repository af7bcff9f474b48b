"""Overrides: `key.sub=value` words that change single values of an experiment."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.tree import (
    flatten_config,
    key_types,
    nearest_key,
    replace_values,
)
from jaxdist.launch.config.value_text import (
    describe_type,
    format_value,
    literal_choices,
    parse_value,
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
    known = key_types(type(config))
    keys = f"list them with: {list_command or f'jaxdist config {experiment}'}"
    changes: dict[str, Any] = {}
    errors: list[BadInput] = []
    for word in overrides:
        try:
            key, text = _split_override(word, known, keys)
            changes[key] = _parse_override(
                key, text, known[key], flatten_config(config)[key]
            )
        except BadInput as error:
            errors.append(error)
    raise_all(errors)
    return replace_values(config, changes), list(changes)


def override_errors(overrides: Sequence[str], *, experiment: str) -> list[BadInput]:
    """Return what is wrong with overrides while the experiment is not known."""
    try:
        apply_config_overrides(
            Experiment(name=experiment), overrides, experiment=experiment
        )
    except BadInput as error:
        return [error]
    return []


def format_override(key: str, value: Any) -> str:
    """Write an override as it is typed into a shell.

    >>> format_override("run.name", "first try"), format_override("data.batch", 60)
    ("'run.name=first try'", 'data.batch=60')
    """
    return shlex.quote(f"{key}={format_value(value)}")


def _split_override(
    override: str, known: Mapping[str, Any], listing: str
) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    if not equals:
        near = nearest_key(key, known)
        raise BadInput(
            f"{override} changes nothing",
            rule="an override is key=value, without spaces",
            remedy=f"did you mean {near}=VALUE?" if near else listing,
        )
    if key not in known:
        raise _unknown_key_error(key, text, known, listing)
    return key, text


def _unknown_key_error(
    key: str, text: str, known: Mapping[str, Any], listing: str
) -> BadInput:
    below = [name for name in known if name.startswith(key + ".")]
    if below:
        return BadInput(
            f"{key} is a group of keys",
            rule="an override sets one value",
            values=f"its keys: {', '.join(name[len(key) + 1 :] for name in below)}",
            remedy=f"{below[0]}={text or 'VALUE'}",
        )
    near = nearest_key(key, known)
    meant = f"did you mean {near}? " if near else ""
    return BadInput(f"no key {key}", remedy=meant + listing)


def _parse_override(key: str, text: str, value_type: Any, current: Any) -> Any:
    try:
        return parse_value(text, value_type)
    except ValueError as refused:
        raise BadInput(
            f"{key} cannot be {text or 'empty'}",
            rule=f"{key} is {describe_type(value_type)}",
            values=f"{key} = {text} (command line)",
            remedy=_suggest_override(key, text, value_type, current),
        ) from refused


def _suggest_override(key: str, text: str, value_type: Any, current: Any) -> str:
    """Return an override that works in place of one that does not."""
    near = did_you_mean(text, literal_choices(value_type))
    if near:
        return f"did you mean {key}={near}?"
    if value_type is int:
        try:
            return format_override(key, round(float(text)))
        except (ValueError, OverflowError):
            pass
    return format_override(key, current)
