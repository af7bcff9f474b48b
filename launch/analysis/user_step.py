"""A script: a jitted step of the user's own and what it is called on, to be audited."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.devices.jax_environment import jax_variables


def load_user_step(target: str) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the step of `my_script.py:step` and the arguments of a call.

    Args:
        target: what the user typed; None is returned where it names an experiment.

    Raises:
        BadInput: a script without that step, or without `args`.
    """
    path, _, name = target.partition(":")
    if not (path.endswith(".py") and name):
        return None
    # A script makes devices as it likes, so none are prepared for it.
    os.environ.update(jax_variables(os.environ, virtual_devices=None))
    from jaxdist.core.object_reference import load_module
    from jaxdist.launch.config.registry import has_experiment

    module = load_module(Path(path))
    if has_experiment(module, name):
        return None
    return user_step(module, Path(path), name)


def reject_overrides(command: str, target: str, overrides: Sequence[str]) -> None:
    """Refuse settings of a script.

    Raises:
        BadInput: there are some.
    """
    if overrides:
        raise BadInput(
            "a script has no keys",
            rule="key=value changes an experiment; a script is taken as it is",
            values=" ".join(overrides),
            remedy=f"jaxdist {command} {target}",
        )


def user_step(module: ModuleType, path: Path, name: str) -> tuple[Any, tuple[Any, ...]]:
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
