"""Keys and values of a configuration tree: dotted names, and values as text.

A tree is a dataclass of dataclasses; a key, `optim.lr`, names one value in it. The type
of a field says how its text is read.
"""

import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from jaxdist.core.errors import BadInput, did_you_mean, raise_all

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@cache
def key_types(cls: type) -> Mapping[str, Any]:
    """Return the type of every key below a dataclass, in the order of the fields."""
    found: dict[str, Any] = {}
    # Type hints, not `dataclasses.fields`: there a type may still be text.
    for name, kind in get_type_hints(cls).items():
        if is_dataclass(kind) and isinstance(kind, type):
            found |= {f"{name}.{key}": sub for key, sub in key_types(kind).items()}
        else:
            found[name] = kind
    return MappingProxyType(found)


def flatten_config(config: object) -> dict[str, Any]:
    """Return the value of every key of a tree.

    >>> from jaxdist.core.plan import MeshShape, Plan
    >>> flatten_config(Plan(mesh=MeshShape(data=4)))["mesh.data"]
    4
    """
    found: dict[str, Any] = {}
    for field in fields(cast(Any, config)):
        value = getattr(config, field.name)
        if is_dataclass(value):
            below = flatten_config(value).items()
            found |= {f"{field.name}.{key}": leaf for key, leaf in below}
        else:
            found[field.name] = value
    return found


def replace_values(config: T, changes: Mapping[str, Any]) -> T:
    """Return the tree with some keys changed; each dataclass is rebuilt once.

    Raises:
        BadInput: dataclasses refuse their new values; told together.
    """
    # All changes of one dataclass are made at once: a rule over two of its fields must
    # not see one new value beside one old value.
    own = {key: value for key, value in changes.items() if "." not in key}
    below: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        if "." in key:
            head, rest = key.split(".", 1)
            below.setdefault(head, {})[rest] = value
    errors: list[BadInput] = []
    for head, part in below.items():
        try:
            own[head] = replace_values(getattr(config, head), part)
        except BadInput as error:
            errors.append(error)
    try:
        config = replace(config, **own)
    except BadInput as error:
        errors.append(error)
    raise_all(errors)
    return config


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the key that was likely meant: the same last words, or a near spelling.

    >>> keys = ["optim.lr", "seed"]
    >>> nearest_key("optm.lr", keys), nearest_key("lr", keys)
    ('optim.lr', 'optim.lr')
    """
    known = list(known)
    # `lr` for `optim.lr` is the most frequent slip: the last word alone. Where several
    # keys end so, none is guessed.
    ending = [name for name in known if name.endswith("." + key)]
    if len(ending) == 1:
        return ending[0]
    last = {name.rsplit(".", 1)[-1]: name for name in known}
    return did_you_mean(key, known) or last.get(did_you_mean(key, last) or "")


def parse_value(text: str, value_type: Any) -> Any:
    """Read a value of this type.

    Args:
        text: what stands behind `=`; sequences have commas between their members.
        value_type: type of the field: a number, text, bool, `Literal`, tuple, or one of
            these `| None`.

    Raises:
        ValueError: the text is no such value.

    >>> parse_value("-1e-3", float), parse_value("3,4", tuple[int, ...])
    (-0.001, (3, 4))
    >>> parse_value("a,b", str), parse_value("", tuple[int, ...])
    ('a,b', ())
    """
    if value_type is str:
        return text
    # None comes first: for a field of `str | None` the word `none` is no text.
    for part in sorted(
        _union_members(value_type), key=lambda part: part is not types.NoneType
    ):
        try:
            value = _read_one(text, part)
        except ValueError:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            break  # float("nan") and float("inf") parse, but no setting may be one
        return value
    raise ValueError(f"{text} is not {describe_type(value_type)}")


def format_value(value: Any) -> str:
    """Write a value so that `parse_value` reads it back.

    >>> format_value((3, 4)), format_value(None), format_value(0.05)
    ('3,4', 'None', '0.05')
    """
    # Commas, without brackets or quotes: a shell needs no escapes for it.
    if isinstance(value, tuple):
        return ",".join(format_value(member) for member in value)
    return str(value)


def literal_choices(value_type: Any) -> tuple[str, ...]:
    """Return the words a `Literal` allows; empty for any other type."""
    literal = [
        part for part in _union_members(value_type) if get_origin(part) is Literal
    ]
    return tuple(str(word) for part in literal for word in get_args(part))


def describe_type(value_type: Any) -> str:
    """Say in words what a value of this type is.

    >>> describe_type(float), describe_type(int | None), describe_type(tuple[str, ...])
    ('a number', 'a whole number or None', 'words with commas between')
    >>> describe_type(Literal["global", "replica"]), describe_type(int | float)
    ('global or replica', 'a number')
    """
    names = {int: "a whole number", float: "a number", str: "text"}
    names |= {bool: "True or False", types.NoneType: "None"}
    said = []
    for part in _union_members(value_type):
        if get_origin(part) is Literal:
            *most, last = (str(word) for word in get_args(part))
            said.append(f"{', '.join(most)} or {last}" if most else last)
        elif is_sequence_type(part):
            of = {int: "whole numbers", float: "numbers"}.get(get_args(part)[0])
            said.append(f"{of or 'words'} with commas between")
        else:
            said.append(names.get(part, getattr(part, "__name__", str(part))))
    # Every whole number is a number: `int | float` has one name.
    if "a number" in said and "a whole number" in said:
        said.remove("a whole number")
    return " or ".join(said)


def is_sequence_type(value_type: Any) -> bool:
    """Tell whether commas separate members in the text of this type."""
    return any(get_origin(part) in (tuple, list) for part in _union_members(value_type))


def _union_members(kind: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the type alone."""
    is_union = get_origin(kind) in (Union, types.UnionType)
    return get_args(kind) if is_union else (kind,)


def _read_one(text: str, kind: Any) -> Any:
    """Read a value of one type that is not a union.

    Raises:
        ValueError: without an explanation, which `parse_value` adds.
    """
    if is_sequence_type(kind):
        words = [part for part in text.split(",") if part]  # "3," has one member
        kinds = get_args(kind)
        if get_origin(kind) is list or kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(words)
        if len(words) != len(kinds):
            raise ValueError(text)
        members = [parse_value(word, member) for word, member in zip(words, kinds)]
        return get_origin(kind)(members)
    spelled: dict[str, Any]
    if get_origin(kind) is Literal:
        spelled = {str(word): word for word in get_args(kind)}
    # `bool(text)` is true for every text but the empty one, `False` as well.
    elif kind is bool:
        spelled, text = {"true": True, "false": False}, text.lower()
    elif kind is types.NoneType:
        spelled, text = {"none": None, "null": None}, text.lower()
    else:
        return kind(text)
    if text not in spelled:
        raise ValueError(text)
    return spelled[text]
