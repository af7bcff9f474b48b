"""Validation of tables from files, and of numbers: errors name the remedy."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean, nearest_path
from jaxdist.core.text_encoding import read_text

_MAX_JSON_SIZE: Final = 1 << 28
"""Characters of the largest JSON that is read: a profile has some million."""
_MAX_YAML_SIZE: Final = 10_000_000
"""Characters, and values, of the largest YAML that is read."""
_MAX_DEPTH: Final = 200


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
            values=_short(repr(tree)),
            remedy=f"{names[0]}: ...",
        )
    for key in tree:
        if key not in names:
            near = did_you_mean(str(key), names)
            raise BadInput(
                f"{context} has no field {key}",
                rule=f"its fields are {', '.join(names)}",
                values=_short(f"{key}: {tree[key]}"),
                remedy=f"did you mean {near}?" if near else f"without {key}",
            )


def _short(text: str, length: int = 80) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


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


def parse_json(text: str | bytes) -> Any:
    """Read JSON that anybody may have written.

    Raises:
        json.JSONDecodeError: it is no JSON, is nested too deep, is too large, or has a
            number of too many digits.

    >>> parse_json('{"step": 3}')
    {'step': 3}
    """
    if len(text) > _MAX_JSON_SIZE:
        size = f"{len(text):,} characters, more than {_MAX_JSON_SIZE:,}"
        raise json.JSONDecodeError(size, "", 0)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        # Not chained: a thousand lines of the parser say nothing.
        raise json.JSONDecodeError("nested too deep", "", 0) from None
    except ValueError as error:
        # Bytes that are no text, and integers of thousands of digits.
        raise json.JSONDecodeError(str(error), "", 0) from error


def parse_yaml(text: str) -> Any:
    """Read YAML that anybody may have written.

    Raises:
        yaml.YAMLError: it is no YAML, is nested too deep, or is too large, as it stands
            or with its aliases written out.

    >>> parse_yaml("{a: &x [1, 2], b: *x}")
    {'a': [1, 2], 'b': [1, 2]}
    """
    import yaml

    if len(text) > _MAX_YAML_SIZE:
        raise yaml.YAMLError(f"{len(text):,} characters, more than {_MAX_YAML_SIZE:,}")
    try:
        tree = yaml.safe_load(text)
        # A few lines of aliases of aliases stand for billions of values.
        values = _count_values(tree, {}, 0)
    except RecursionError:
        raise yaml.YAMLError("nested too deep") from None
    except (ValueError, TypeError, OverflowError) as error:
        # Dates and numbers that cannot be, and keys that are lists.
        raise yaml.YAMLError(str(error)) from error
    if values > _MAX_YAML_SIZE:
        raise yaml.YAMLError(f"{values:.3g} values, with aliases written out")
    return tree


def _count_values(tree: Any, known: dict[int, int], depth: int) -> int:
    """Count the values of a tree as if each alias were written out."""
    if not isinstance(tree, (dict, list, set, tuple)):
        return 1
    if id(tree) not in known:
        if depth > _MAX_DEPTH:
            raise RecursionError
        # An alias to what it stands in never ends.
        known[id(tree)] = _MAX_YAML_SIZE + 1
        children = tree.values() if isinstance(tree, dict) else tree
        known[id(tree)] = 1 + sum(_count_values(x, known, depth + 1) for x in children)
    return known[id(tree)]


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
        near = nearest_path(path, "*.*")
        raise BadInput(
            f"no file {path}",
            rule=f"{kind} is a name or a file that exists",
            values=f"{option} {path}",
            remedy=f"did you mean {near}?" if near else f"{doc_page} has an example",
        )
    try:
        text = read_text(path)
        tree = parse_yaml(text)
        # `safe_load` keeps the last of two equal keys and says nothing.
        repeated = _repeated_key(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
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


def json_text(value: Any, *, indent: int | None = None, ascii_only: bool = True) -> str:
    """Return a value as JSON; most readers refuse a file with NaN or Infinity.

    Args:
        value: what `json.dumps` takes.
        indent: spaces of a level; None for one line.
        ascii_only: whether other characters are escaped.

    >>> json_text({"loss": float("nan"), "steps": [1, float("inf")]})
    '{"loss": null, "steps": [1, null]}'
    """

    def finite(node: Any) -> Any:
        if isinstance(node, float):
            return node if math.isfinite(node) else None
        if isinstance(node, Mapping):
            return {key: finite(each) for key, each in node.items()}
        if isinstance(node, list | tuple):
            return [finite(each) for each in node]
        return node

    return json.dumps(
        finite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False
    )


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
