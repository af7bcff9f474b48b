"""Fields of a plan's JSON, checked against those that the dataclasses have."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_fields


def lists_to_tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the lists of JSON as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()}


def check_known_fields(cls: type, tree: Any, context: str) -> dict[str, Any]:
    """Pass the fields through, or name the one that `cls` does not have.

    Args:
        cls: whose fields they are.
        tree: as JSON has it.
        context: what has them, for errors: `plan.mesh`.

    Raises:
        BadInput: no object, or a field of another name.
    """
    check_fields(check_object(context, tree), [f.name for f in fields(cls)], context)
    return dict(tree)


def check_object(context: str, tree: Any) -> dict[str, Any]:
    """Refuse what is no object of JSON.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(tree, dict):
        raise BadInput(
            f"{context} is no {type(tree).__name__}",
            rule="a plan is an object of JSON, as a run folder's plan.json is",
            values=json.dumps(tree)[:60],
            remedy="jaxdist plan digits --cluster testbed --devices 4 -o plan.json",
        )
    return tree
