"""A script: a jitted step of the user's own and what it is called on, to be audited."""

from pathlib import Path
from types import ModuleType
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean


def step_of(module: ModuleType, path: Path, name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a script's step and the arguments of a call.

    Args:
        module: the script, loaded.
        path: where it is.
        name: the step's name in it.

    Raises:
        BadInput: it has no such step, or no `args`.
    """
    if not hasattr(module, name):
        near = did_you_mean(name, vars(module))
        raise BadInput(
            f"no {name} in {path}",
            remedy=f"did you mean {path}:{near}?"
            if near
            else f"{name} = jax.jit(...) in {path}",
        )
    if not hasattr(module, "args"):
        raise BadInput(
            f"{path} does not say what {name} is called on",
            rule="the script has `args`: a tuple, or a function that returns one",
            remedy="args = (params, batch), arrays or jax.ShapeDtypeStruct(..., "
            "sharding=...)",
        )
    given = module.args() if callable(module.args) else module.args
    if not isinstance(given, tuple):
        raise BadInput(
            f"args of {path} is no tuple",
            rule="args holds one element for each argument of the step",
            values=f"a {type(given).__name__}",
            remedy="args = (x,) for a step of one argument",
        )
    return getattr(module, name), given
