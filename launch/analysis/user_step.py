"""Loads a jitted step from a user's script, and the arguments that it is called on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.devices.jax_environment import jax_variables


def load_user_step(target: str) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the step of `my_script.py:step` and the arguments of a call.

    Args:
        target: what the user typed.

    Returns:
        None where `target` names an experiment.

    Raises:
        BadInput: a script without that step, or without `args`.
    """
    file, _, name = target.partition(":")
    if not (file.endswith(".py") and name):
        return None
    # A script makes devices as it likes, so none are prepared for it. The variables
    # are read by jax when it is first imported, which the script does.
    os.environ.update(jax_variables(os.environ, virtual_devices=None))
    from jaxdist.core.object_reference import load_module
    from jaxdist.launch.config.experiment import has_experiment

    path = Path(file)
    module = load_module(path)
    # `my_experiment.py:NAME` is an experiment of a file that has several.
    if has_experiment(module, name):
        return None
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
    # A function makes its arrays when it is called, so that importing makes none.
    given = module.args() if callable(module.args) else module.args
    if not isinstance(given, tuple):
        raise BadInput(
            f"args of {path} is no tuple",
            rule="args holds one element for each argument of the step",
            values=f"a {type(given).__name__}",
            remedy="args = (x,) for a step of one argument",
        )
    return getattr(module, name), given


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
