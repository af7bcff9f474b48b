"""Data of one's own: a function in a file or module that returns two sample sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.object_reference import call_user_function, resolve_object
from jaxdist.input.sources import ArraySource, Source

_RULE = "a data function takes nothing and returns (train, test): sources, or arrays"


def open_user_data(name: str) -> tuple[Source, Source]:
    """Call the function that `name` names.

    Args:
        name: `file.py:function` or `module:function`.

    Returns:
        The training and the held-out samples. Dicts of arrays, [N, ...] each, become
        sources.

    Raises:
        BadInput: there is no such function, it fails, or it returns something else.
    """
    made = call_user_function(name, resolve_object(name))
    if not isinstance(made, tuple) or len(made) != 2:
        raise _no_samples_error(name, f"it returned {_describe(made)}")
    train, test = (_as_source(name, part) for part in made)
    return train, test


def _as_source(name: str, part: Any) -> Source:
    if isinstance(part, Mapping):
        return ArraySource({key: np.asarray(array) for key, array in part.items()})
    if not all(hasattr(part, member) for member in ("get", "__len__")):
        raise _no_samples_error(name, f"one of the two is {_describe(part)}")
    source: Source = part
    return source


def _describe(thing: Any) -> str:
    size = f" of {len(thing)}" if isinstance(thing, (tuple, list)) else ""
    return type(thing).__name__ + size


def _no_samples_error(name: str, values: str) -> BadInput:
    return BadInput(
        f"{name} gives no samples",
        rule=_RULE,
        values=values,
        remedy='return {"image": ..., "label": ...}, {"image": ..., "label": ...}',
    )
