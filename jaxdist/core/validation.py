"""Validation of tables from files, and of numbers: errors name the remedy."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean


def check_fields(tree: object, known: Iterable[str], context: str) -> None:
    """Refuse what is no table, and unknown fields.

    Args:
        tree: what was read.
        known: names of the fields that there are.
        context: what has them, for errors: `a level`.

    Raises:
        BadInput: no table, or a field of another name.
    """
    names = list(known)
    if not isinstance(tree, Mapping):
        raise BadInput(
            f"{context} is not a table",
            rule=f"its fields are {', '.join(names)}",
            values=f"{tree!r}",
            remedy=f"{names[0]}: ...",
        )
    for key in tree:
        if key not in names:
            near = did_you_mean(str(key), names)
            raise BadInput(
                f"{context} has no field {key}",
                rule=f"its fields are {', '.join(names)}",
                values=f"{key}: {tree[key]}",
                remedy=f"did you mean {near}?" if near else f"without {key}",
            )


def check_required_fields(
    tree: Mapping[str, Any], keys: Iterable[str], context: str
) -> None:
    """Refuse a table that lacks a field.

    Raises:
        BadInput: one is not there.
    """
    for key in keys:
        if key not in tree:
            raise BadInput(
                f"{context} has no {key}",
                rule=f"{context} has {', '.join(keys)}",
                values=f"it has {', '.join(map(str, tree)) or 'nothing'}",
                remedy=f"{key}: ...",
            )


def check_range(
    key: str, value: float, *, minimum: float, upper_bound: float = math.inf
) -> None:
    """Refuse a number outside its range.

    Args:
        key: the setting, as it is typed.
        value: what it was given.
        minimum: the smallest number that works.
        upper_bound: the first number that does not.

    Raises:
        BadInput: with the number nearest to what was given, or the smallest.

    >>> check_range("model.dropout", 0.3, minimum=0, upper_bound=1)
    >>> check_range("model.width", 0, minimum=1)
    Traceback (most recent call last):
    jaxdist.core.errors.BadInput: model.width is out of range
      rule     model.width is at least 1
      values   model.width = 0
      remedy   model.width=1
    """
    if minimum <= value < upper_bound:
        return
    upper = "" if upper_bound == math.inf else f" and below {upper_bound:g}"
    raise BadInput(
        f"{key} is out of range",
        rule=f"{key} is at least {minimum:g}{upper}",
        values=f"{key} = {value}",
        remedy=f"{key}={minimum:g}",
    )


def load_yaml_mapping(
    path: Path, *, kind: str, contents: str, option: str, doc_page: str
) -> Any:
    """Read a file as a table.

    Args:
        path: of the file; JSON is YAML too.
        kind: it is: `a platform`.
        contents: what it has, for errors.
        option: that names it on the command line.
        doc_page: of the documentation, which has an example.

    Raises:
        BadInput: no file, or no table in it.
    """
    # Imported here: commands that read no file start faster without it.
    import yaml

    if not path.is_file():
        near = did_you_mean(str(path), [str(p) for p in path.parent.glob("*.*")])
        raise BadInput(
            f"no file {path}",
            rule=f"{kind} is a name or a file that exists",
            values=f"{option} {path}",
            remedy=f"did you mean {near}?" if near else f"{doc_page} has an example",
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = yaml.safe_load(text)
        repeated = _repeated_key(yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read",
            rule=f"{kind} is a YAML file",
            values=" ".join(str(error).split()),
            remedy=f"{doc_page} has an example",
        ) from error
    if repeated:
        raise BadInput(
            f"{path} has a key twice",
            rule="each key of a table is there once: the last would count alone",
            values=repeated,
            remedy="one of them",
        )
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise BadInput(
            f"{path} is not a table",
            rule=f"the file of {kind} is a table: {contents}",
            values=f"{type(tree).__name__}",
            remedy=f"{doc_page} has an example",
        )
    return tree


def _repeated_key(node: Any) -> str:
    """Return the first key that a table of a YAML document has twice, with its line."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return next(filter(None, map(_repeated_key, node.value)), "")
    if not isinstance(node, yaml.MappingNode):
        return ""
    seen = set[str]()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            return f"{key.value}, again in line {key.start_mark.line + 1}"
        if isinstance(key, yaml.ScalarNode):
            seen.add(key.value)
        if below := _repeated_key(value):
            return below
    return ""
