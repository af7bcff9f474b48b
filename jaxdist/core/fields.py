"""Fields of a file or a table: those that are known, and the refusal of others."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean


def check_fields(tree: object, known: Iterable[str], where: str) -> None:
    """Refuse what is no table, and fields that are not known.

    Args:
        tree: what was read.
        known: names of the fields that there are.
        where: what has them, for errors: `a level`.

    Raises:
        BadInput: no table, or a field of another name.
    """
    names = list(known)
    if not isinstance(tree, Mapping):
        raise BadInput(
            f"{where} is not a table",
            rule=f"its fields are {', '.join(names)}",
            values=f"{tree!r}",
            remedy=f"{names[0]}: ...",
        )
    for key in tree:
        if key not in names:
            near = did_you_mean(str(key), names)
            raise BadInput(
                f"{where} has no field {key}",
                rule=f"its fields are {', '.join(names)}",
                values=f"{key}: {tree[key]}",
                remedy=f"did you mean {near}?" if near else f"without {key}",
            )


def required(tree: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Refuse a table that lacks a field.

    Raises:
        BadInput: one is not there.
    """
    for key in keys:
        if key not in tree:
            raise BadInput(
                f"{where} has no {key}",
                rule=f"{where} has {', '.join(keys)}",
                values=f"it has {', '.join(map(str, tree)) or 'nothing'}",
                remedy=f"{key}: ...",
            )
