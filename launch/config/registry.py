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
    # Found, not imported: experiments import this package.
    spec = find_spec(EXPERIMENTS)
    folders = spec.submodule_search_locations if spec else None
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def list_experiments() -> tuple[ExperimentEntry, ...]:
    """Return every experiment that comes with the package, by name."""
    entries = []
    for name in experiment_names():
        module = import_module(f"{EXPERIMENTS}.{name}")
        entries.append(
            ExperimentEntry(
                name=name,
                summary=(module.__doc__ or "").strip().splitlines()[0],
                details=inspect.getdoc(getattr(module, name)) or "",
            )
        )
    return tuple(entries)


def load_experiment(name_or_path: str) -> Experiment:
    """Return the settings of an experiment.

    Args:
        name_or_path: a name of the catalogue, a path `my_experiment.py`, or
            `my_experiment.py:function` where the file has several.

    Raises:
        BadInput: there is no such experiment, or the file cannot be used.
    """
    path, _, wanted = name_or_path.partition(":")
    make: Callable[[], Any]
    if path.endswith(".py") or "/" in path:
        found = _experiment_functions(load_module(Path(path)))
        if wanted and wanted not in found:
            near = did_you_mean(wanted, found) or ", ".join(found)
            raise BadInput(
                f"no experiment {wanted} in {path}", remedy=f"did you mean {near}?"
            )
        if not found:
            raise BadInput(
                f"{path} has no experiment",
                rule="a function of the file says that it returns an Experiment",
                remedy="def mine() -> Experiment:  (from jaxdist.launch.config)",
            )
        if not wanted and len(found) > 1:
            raise BadInput(
                f"{path} has several experiments",
                rule="one experiment is trained at a time",
                values=", ".join(found),
                remedy=[f"{path}:{name}" for name in found],
            )
        make = found[wanted or next(iter(found))]
    else:
        known = experiment_names()
        if name_or_path not in known:
            meant = did_you_mean(name_or_path, known)
            meant = f"did you mean {meant}? " if meant else ""
            raise BadInput(
                f"no experiment named {name_or_path}",
                remedy=meant + LIST_EXPERIMENTS_HINT,
            )
        # Only the module that is asked for is imported: the others may be slow.
        make = getattr(import_module(f"{EXPERIMENTS}.{name_or_path}"), name_or_path)
    config = call_user_function(name_or_path, make)
    # The annotation of a user's function is a claim, not a check.
    if not isinstance(config, Experiment):
        raise BadInput(
            f"{name_or_path} gives no experiment",
            rule=f"{make.__name__}() returns an Experiment",
            values=f"it returned {type(config).__name__}",
            remedy="return Experiment(name=..., ...)",
        )
    # A run without a name of its own has the experiment's, so its folder is known.
    if config.run.name:
        return config
    return replace(config, run=replace(config.run, name=config.name))


def has_experiment(module: ModuleType, name: str) -> bool:
    """Tell whether a file's function says that it returns an experiment."""
    return name in _experiment_functions(module)


def _experiment_functions(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """Return the functions of a file that say they return an Experiment.

    The annotation is text where the file imports `annotations` from `__future__`.
    """
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        # Functions that the file has imported are not its experiments.
        if function.__module__ == module.__name__
        and function.__annotations__.get("return") in (Experiment, "Experiment")
        and not name.startswith("_")
    }
