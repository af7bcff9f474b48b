"""Fields of platform files: what is there, what is not known, and what is no value."""

from collections.abc import Mapping
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.validation import check_fields
from jaxdist.network.platforms.expand import fill_template

YamlTable = Mapping[str, Any]


def read_entries(tree: YamlTable, key: str, known: tuple[str, ...]) -> list[YamlTable]:
    """Return one entry or several as a list, each a table of known fields."""
    found = tree.get(key)
    many: list[YamlTable] = found if isinstance(found, list) else [found or {}]
    if not found or not all(isinstance(entry, dict) for entry in many):
        raise BadInput(
            f"the platform has no {key}",
            rule=f"{key} are one entry or a list of entries, each with a name",
            values=f"{key}: {found!r}",
            remedy="docs/network.md has an example; or topology: fat_tree",
        )
    for entry in many:
        check_fields(entry, known, f"an entry of {key}")
    return many


def read_name(entry: YamlTable, key: str, numbers: Mapping[str, int]) -> str:
    """Return a name with its numbers filled in."""
    if not isinstance(entry.get(key), str | int):
        raise missing_field_error(f"the entry {dict(entry)}", key)
    return fill_template(str(entry[key]), numbers)


def read_choice(tree: YamlTable, key: str, words: tuple[str, ...]) -> str:
    """Return one of the words that a field may have; the first one is the default."""
    word = tree.get(key, words[0])
    if word not in words:
        near = did_you_mean(str(word), words)
        raise BadInput(
            f"{key}: {word} is not known",
            rule=f"{key} is one of {', '.join(words)}",
            values=f"{key}: {word}",
            remedy=f"did you mean {near}?" if near else f"{key}: {words[0]}",
        )
    return str(word)


def read_flag(tree: YamlTable, key: str) -> bool:
    """Return a field that is true or false, which it is without one."""
    value = tree.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(
            f"{key}: {value} is neither true nor false",
            rule=f"{key} is true or false",
            values=f"{key}: {value}",
            remedy=f"{key}: true",
        )
    return value


def read_count(tree: YamlTable, key: str, default: int) -> int:
    """Return a whole number."""
    value = tree.get(key, default)
    if type(value) is not int or value < min(default, 1):
        raise BadInput(
            f"{key}: {value} is no count",
            rule=f"{key} is a whole number above 0",
            values=f"{key}: {value}",
            remedy=f"{key}: 4",
        )
    return value


def missing_field_error(where: str, key: str) -> BadInput:
    """Return what is said of a field that is not there."""
    example = {"bandwidth": "12.5GB/s", "latency": "0.5us"}.get(key, "NAME")
    return BadInput(
        f"{where} has no {key}",
        rule="a cable has from, to, bandwidth and latency, its own or of its kind; "
        "devices and switches have a name",
        values=f"{key} is not there",
        remedy=f"{key}: {example}",
    )
