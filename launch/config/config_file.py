"""Configuration files: settings of an experiment in YAML or TOML, for `--config FILE`.

Keys are nested or dotted: `optim: {lr: 0.1}` and `optim.lr: 0.1` are one. Values stay
text, as on the command line, so that `on`, `1e-3` and `none` mean the same in both.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.core.text_encoding import read_text
from jaxdist.launch.config.aliases import (
    SHORT_KEYS,
    STEP_KEYS,
    current_key,
    steps_error,
)
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.tree import (
    describe_type,
    format_value,
    key_types,
    nearest_key,
    parse_value,
)

if TYPE_CHECKING:
    from yaml import Node


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A value of a file."""

    key: str
    """As it is written, dotted."""
    text: str
    """The value."""
    line: int | None
    """Where it stands, counted from 1; None: not known."""


def read_config_file(path: Path, *, experiment: str) -> list[str]:
    """Return the settings of a file as overrides, `key.sub=value`.

    Args:
        path: a YAML, JSON or TOML file.
        experiment: name or file of the experiment, for remedies.

    Raises:
        BadInput: no such file, or keys and values that cannot be used, all together,
            with their lines.
    """
    known = key_types(Experiment)
    listing = f"list them with: jaxdist config {experiment}"
    words: list[str] = []
    errors: list[BadInput] = []
    lines: dict[str, str] = {}
    for setting in _read_settings(path):
        # Names as the command line takes them: older and short ones too.
        key = current_key(setting.key)
        key = SHORT_KEYS.get(key, key) if key not in known else key
        place = f"{path}:{setting.line}" if setting.line else str(path)
        if key in STEP_KEYS:
            errors.append(steps_error(f"{key}={setting.text} ({place})", None))
        elif key not in known:
            near = nearest_key(key, known)
            errors.append(
                BadInput(
                    f"no key {setting.key}",
                    values=place,
                    remedy=f"did you mean {near}? {listing}" if near else listing,
                )
            )
        elif key in lines:
            errors.append(
                BadInput(
                    f"{key} is there twice",
                    rule="each setting of a file is there once",
                    values=f"{lines[key]} and {place}",
                    remedy="one of them",
                )
            )
        else:
            lines[key] = place
            words.append(f"{key}={setting.text}")
            # Read here although the words are read again: only the file knows the line.
            try:
                parse_value(setting.text, known[key])
            except ValueError:
                errors.append(
                    BadInput(
                        f"{key} cannot be {setting.text or 'empty'}",
                        rule=f"{key} is {describe_type(known[key])}",
                        values=place,
                        remedy=f"jaxdist config {experiment} shows its value",
                    )
                )
    raise_all(errors)
    return words


def _read_settings(path: Path) -> list[_Setting]:
    """Return the settings of a file, in its order.

    Raises:
        BadInput: it cannot be read.
    """
    if not path.is_file():
        beside = path.parent.glob("*") if path.parent.is_dir() else ()
        near = did_you_mean(str(path), [str(other) for other in beside])
        raise BadInput(
            f"no file {path}",
            rule="--config is a YAML or TOML file of settings",
            values=f"--config {path}",
            remedy=f"did you mean {near}?" if near else "epochs: 2, a line a setting",
        )
    text = read_text(path)
    readers = {".toml": _toml_settings}
    # JSON is a part of YAML.
    readers |= dict.fromkeys((".yaml", ".yml", ".json"), _yaml_settings)
    if path.suffix not in readers:
        raise BadInput(
            f"{path} is no configuration file",
            rule="--config is a file .yaml, .json or .toml",
            values=f"--config {path}",
            remedy=f"its contents in {path.with_suffix('.yaml')}",
        )
    try:
        return list(readers[path.suffix](text))
    except ValueError as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="a configuration file is a table of settings: optim.lr: 0.1 in YAML, "
            "optim.lr = 0.1 in TOML",
            values=" ".join(str(error).split()),
            remedy="docs/configuration.md has an example",
        ) from error


def _yaml_settings(text: str) -> Iterator[_Setting]:
    """Yield the settings of a YAML text.

    Raises:
        ValueError: it is no YAML, or no table.
    """
    import yaml

    from jaxdist.core.validation import parse_yaml

    try:
        # Refuses what is nested too deep or too large once aliases are written out.
        if parse_yaml(text) is None:
            return
        # Nodes and no values: they have the text of each, and its line.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    yield from _node_settings(node, "")


def _node_settings(node: "Node", prefix: str) -> Iterator[_Setting]:
    """Yield the settings below a node of YAML."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{prefix or 'the file'} is no table of settings")
    for name, value in node.value:
        if not isinstance(name, yaml.ScalarNode):
            raise ValueError(f"line {name.start_mark.line + 1}: a key is a word")
        key = f"{prefix}.{name.value}" if prefix else name.value
        if isinstance(value, yaml.MappingNode):
            yield from _node_settings(value, key)
            continue
        # A list is written as on the command line, with commas.
        members = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(member, yaml.ScalarNode) for member in members):
            raise ValueError(f"line {value.start_mark.line + 1}: {key} is one value")
        # The text itself: YAML would make True of `on`, and text of 1e-3.
        texts = [
            "None" if member.tag.endswith(":null") else member.value
            for member in members
        ]
        yield _Setting(key=key, text=",".join(texts), line=name.start_mark.line + 1)


def _toml_settings(text: str) -> Iterator[_Setting]:
    """Yield the settings of a TOML text.

    Raises:
        ValueError: it is no TOML.
    """
    lines = _toml_lines(text)

    def settings(table: dict[str, Any], prefix: str) -> Iterator[_Setting]:
        for name, value in table.items():
            key = f"{prefix}.{name}" if prefix else name
            if isinstance(value, dict):
                yield from settings(value, key)
                continue
            text = format_value(tuple(value) if isinstance(value, list) else value)
            yield _Setting(key=key, text=text, line=lines.get(key))

    # Numbers as they are written: a float may come back with other digits.
    yield from settings(tomllib.loads(text, parse_float=str), "")


def _toml_lines(text: str) -> dict[str, int]:
    """Return the line of each key that stands alone on one; tomllib tells none.

    >>> _toml_lines("epochs = 2\\n[optim]\\nlr = 0.1")
    {'epochs': 1, 'optim.lr': 3}
    """
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            table = f"{header[1]}."
        elif key := re.match(r"\s*\"?([\w.-]+)\"?\s*=", line):
            found.setdefault(table + key[1], number)
    return found
