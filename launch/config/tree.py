"""Keys: the dotted names of the single values in a configuration tree."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from jaxdist.core.errors import BadInput, did_you_mean, raise_all

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def key_types(cls: type) -> dict[str, Any]:
    """Return the type of every key below a dataclass, in the order of the fields."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(cls).items():
        if is_dataclass(kind) and isinstance(kind, type):
            found |= {f"{name}.{key}": sub for key, sub in key_types(kind).items()}
        else:
            found[name] = kind
    return found


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
    ending = [name for name in known if name.endswith("." + key)]
    if len(ending) == 1:
        return ending[0]
    last = {name.rsplit(".", 1)[-1]: name for name in known}
    return did_you_mean(key, known) or last.get(did_you_mean(key, last) or "")
