"""Trackers by the names that `track=` takes, and the packages that they need."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from jaxdist.core.errors import BadInput, raise_all
from jaxdist.launch.config.experiment import TrackerName
from jaxdist.launch.tracking.tracker import Tracker

_CLASSES: Final[Mapping[TrackerName, tuple[str, str]]] = MappingProxyType(
    {
        "csv": ("csv_table:CsvTracker", ""),
        "mlflow": ("mlflow_store:MlflowTracker", "mlflow"),
        "tensorboard": ("tensorboard:TensorBoardTracker", "tensorboardX"),
        "wandb": ("weights_and_biases:WandbTracker", "wandb"),
    }
)
"""Class and package by name; the package is imported as a run begins."""


def make_trackers(names: Iterable[str]) -> dict[str, Tracker]:
    """Return a tracker for each name, none of them begun.

    Args:
        names: those of `track`, which the configuration has checked.

    Raises:
        BadInput: a package is not installed.
    """
    found: dict[str, Tracker] = {}
    errors = []
    for name, (place, package) in _CLASSES.items():
        if name not in names:
            continue
        if package and find_spec(package) is None:
            errors.append(
                BadInput(
                    f"track={name} needs a package that is not installed",
                    rule=f"{name} is written by {package}",
                    values=f"no module {package}",
                    remedy=("pip install 'jaxdist[track]'", "or without it: track=csv"),
                )
            )
            continue
        module, _, kind = place.partition(":")
        # Looked up by name: the file of a tracker is imported where it is asked for.
        found[name] = getattr(import_module(f"{__package__}.{module}"), kind)()
    raise_all(errors)
    return found
