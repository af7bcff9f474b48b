"""Fields of a plan's JSON, held against those that the values have."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean


def tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the lists of JSON as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()}


def known(owner: type, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Pass the fields through, or name the one that `owner` does not have."""
    names = [f.name for f in fields(owner)]
    for key in as_object(f"a plan's {owner.__name__}", tree):
        if key not in names:
            near = did_you_mean(key, names) or ", ".join(names)
            raise BadInput(f"no plan field {key}", remedy=f"did you mean {near}?")
    return dict(tree)


def as_object(what: str, tree: Any) -> dict[str, Any]:
    """Refuse what is no object of JSON."""
    if not isinstance(tree, dict):
        raise BadInput(
            f"{what} is no {type(tree).__name__}",
            rule="a plan is an object of JSON, as a run folder's plan.json is",
            values=json.dumps(tree)[:60],
            remedy="jaxdist plan digits --cluster testbed --devices 4 -o plan.json",
        )
    return tree
