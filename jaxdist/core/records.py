"""Records: dataclasses of plain values that anybody may have written.

A file of a run, or a message of another process, may be cut off, of another version or
of something else. Its values are held against the annotations of a dataclass.
"""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_fields, check_required_fields

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
_INTEGER_BOUND: Final = 2**63
_TYPE_TEXTS: Final[Mapping[Any, str]] = {
    int: "a whole number of at most 64 bits",
    float: "a finite number",
    str: "a text",
    bool: "true or false",
    Mapping: "a table",
    Sequence: "a list",
    tuple: "a list",
}


def parse_record(kind: type[Record], tree: object, context: str) -> Record:
    """Make a dataclass of plain values, as JSON has them.

    Args:
        kind: the dataclass; its annotations are numbers, texts, dataclasses, and
            sequences and mappings of such.
        tree: the values.
        context: what has them, for errors: `a heartbeat`.

    Raises:
        BadInput: no table, a field that is missing or unknown, or a value of another
            type or not finite.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Beat:
    ...     step: int
    >>> parse_record(Beat, {"step": 3}, "a beat")
    Beat(step=3)
    >>> parse_record(Beat, {"step": "3"}, "a beat")
    Traceback (most recent call last):
    jaxdist.core.errors.BadInput: step of a beat is of another type
      rule     step is a whole number of at most 64 bits
      values   step = '3'
      remedy   step: a whole number of at most 64 bits
    """
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    values = parse_fields(kind, tree, context)
    check_required_fields(values, required, context)
    return kind(**values)


def parse_fields(
    kind: type["DataclassInstance"], tree: object, context: str
) -> dict[str, Any]:
    """Return the fields that a table has, as the annotations of a dataclass have them.

    Args:
        kind: the dataclass.
        tree: plain values.
        context: what has them, for errors.

    Raises:
        BadInput: no table, an unknown field, or a value of another type.
    """
    check_fields(tree, [field.name for field in fields(kind)], context)
    # All else was refused by `check_fields`.
    assert isinstance(tree, Mapping)
    types = get_type_hints(kind)
    return {
        name: parse_value(types[name], value, name, context)
        for name, value in tree.items()
    }


def known_fields(kind: type["DataclassInstance"], tree: object) -> object:
    """Leave out of a table what a dataclass has not: fields of another version."""
    names = {field.name for field in fields(kind)}
    if not isinstance(tree, Mapping):
        return tree
    return {name: value for name, value in tree.items() if name in names}


def parse_value(kind: Any, value: Any, name: str, context: str) -> Any:
    """Return a plain value as an annotation has it.

    Args:
        kind: the annotation.
        value: the value; a list where the annotation is a tuple.
        name: of the field.
        context: what has the field, for errors.

    Raises:
        BadInput: it is of another type, or not finite.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and NoneType in args):
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return parse_record(kind, value, f"{name} of {context}")
    if origin in (Union, UnionType):
        # Besides None there is one type, or `int | float`: the last one takes both.
        *_, kind = (each for each in args if each is not NoneType)
        return parse_value(kind, value, name, context)
    if origin is Mapping and isinstance(value, Mapping):
        key_kind, each_kind = args
        return {
            _parse_key(key_kind, key, name, context): parse_value(
                each_kind, each, f"{name}.{key}", context
            )
            for key, each in value.items()
        }
    if origin in (Sequence, tuple) and isinstance(value, list | tuple):
        values = [parse_value(args[0], each, name, context) for each in value]
        return tuple(values) if origin is tuple else values
    # By type as well: True is 1 to Python.
    is_choice = any(type(each) is type(value) and each == value for each in args)
    if not (is_choice if origin is Literal else is_scalar(kind, value)):
        raise _type_error(kind, value, name, context)
    return value


def _parse_key(kind: Any, key: Any, name: str, context: str) -> Any:
    """Return the key of a mapping; JSON has only texts."""
    if kind is not int:
        return key
    # 18 digits always fit into 64 bits.
    if not isinstance(key, str) or not re.fullmatch("[0-9]{1,18}", key):
        raise _type_error(int, key, f"a key of {name}", context)
    return int(key)


def is_scalar(kind: Any, value: Any) -> bool:
    """Tell whether a value is an int, float, str or bool; floats are finite.

    >>> is_scalar(float, 3), is_scalar(int, True), is_scalar(float, float("nan"))
    (True, False, False)
    """
    # By the type itself: True is an integer to Python. JSON may have 3 for 3.0.
    if type(value) is int and kind in (int, float):
        return abs(value) < _INTEGER_BOUND
    return type(value) is kind and (kind is not float or math.isfinite(value))


def _type_error(kind: Any, value: Any, name: str, context: str) -> BadInput:
    expected = _TYPE_TEXTS.get(get_origin(kind) or kind, str(kind))
    if get_origin(kind) is Literal:
        expected = f"one of {', '.join(map(str, get_args(kind)))}"
    return BadInput(
        f"{name} of {context} is of another type",
        rule=f"{name} is {expected}",
        values=f"{name} = {reprlib.repr(value)}",
        remedy=f"{name}: {expected}",
    )
