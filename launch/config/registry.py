"""The catalogue: experiments by name, or in a file of the user's own."""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.object_reference import call_user_function, load_module
from jaxdist.launch.config.experiment import Experiment

EXPERIMENTS: Final = "jaxdist.launch.experiments"
"""Package whose modules are the experiments; named, not imported: it lies above."""
LIST_EXPERIMENTS_HINT: Final = "list them with: jaxdist experiments"


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    """One line of the catalogue."""

    name: str
    """What `jaxdist train` takes."""
    summary: str
    """First line of the file's docstring."""
    details: str
    """Docstring of the function: source, time, score and command."""


def experiment_names() -> tuple[str, ...]:
    """Return the names of the experiments that come with the package."""
    spec = find_spec(EXPERIMENTS)
    folders = spec.submodule_search_locations if spec else None
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def list_experiments() -> tuple[ExperimentEntry, ...]:
    """Return every experiment that comes with the package, by name."""
    return tuple(_entry(name) for name in experiment_names())


def load_experiment(name_or_path: str) -> Experiment:
    """Return the settings of an experiment.

    Args:
        name_or_path: a name of the catalogue, a path `my_experiment.py`, or
            `my_experiment.py:function` where the file has several.

    Raises:
        BadInput: there is no such experiment, or the file cannot be used.
    """
    path, _, wanted = name_or_path.partition(":")
    if path.endswith(".py") or "/" in path:
        make = _select_experiment(
            _experiment_functions(load_module(Path(path))), path, wanted
        )
    else:
        make = _builtin_experiment(name_or_path)
    config = call_user_function(name_or_path, make)
    if not isinstance(config, Experiment):
        raise BadInput(
            f"{name_or_path} gives no experiment",
            rule=f"{make.__name__}() returns an Experiment",
            values=f"it returned {type(config).__name__}",
            remedy="return Experiment(name=..., ...)",
        )
    if config.run.name:
        return config
    return replace(config, run=replace(config.run, name=config.name))


def _entry(name: str) -> ExperimentEntry:
    module = import_module(f"{EXPERIMENTS}.{name}")
    return ExperimentEntry(
        name=name,
        summary=(module.__doc__ or "").strip().splitlines()[0],
        details=inspect.getdoc(getattr(module, name)) or "",
    )


def _builtin_experiment(name: str) -> Callable[[], Any]:
    known = experiment_names()
    if name not in known:
        near = did_you_mean(name, known)
        meant = f"did you mean {near}? " if near else ""
        raise BadInput(
            f"no experiment named {name}", remedy=meant + LIST_EXPERIMENTS_HINT
        )
    module = import_module(f"{EXPERIMENTS}.{name}")
    make: Callable[[], Any] = getattr(module, name)
    return make


def has_experiment(module: ModuleType, name: str) -> bool:
    """Tell whether a file's function says that it returns an experiment."""
    return name in _experiment_functions(module)


def _experiment_functions(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """Return the functions of a file that say they return an Experiment."""
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and function.__annotations__.get("return") in (Experiment, "Experiment")
        and not name.startswith("_")
    }


def _select_experiment(
    found: dict[str, Callable[[], Any]], path: str, wanted: str
) -> Callable[[], Any]:
    names = ", ".join(found)
    if wanted in found:
        return found[wanted]
    if wanted:
        near = did_you_mean(wanted, found) or names
        raise BadInput(
            f"no experiment {wanted} in {path}", remedy=f"did you mean {near}?"
        )
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise BadInput(
            f"{path} has several experiments",
            rule="one experiment is trained at a time",
            values=names,
            remedy=[f"{path}:{name}" for name in found],
        )
    raise BadInput(
        f"{path} has no experiment",
        rule="a function of the file says that it returns an Experiment",
        remedy="def mine() -> Experiment:  (from jaxdist.launch.config)",
    )
