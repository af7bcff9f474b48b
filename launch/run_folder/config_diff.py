"""Changes: what differs between two configurations, and what a resume allows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.overrides import format_override
from jaxdist.launch.config.tree import flatten_config
from jaxdist.launch.config.value_text import format_value
from jaxdist.launch.run_folder.lockfile import ConfigLock, SampleFingerprints
from jaxdist.pipeline.plan_schedule import updates_per_step

RESUME_FIXED_KEYS: Final = (
    "name",
    "seed",
    "precision",
    *("data.name", "data.batch", "data.path", "data.context", "data.stride"),
    *("data.size", "data.samples"),
    *("model.", "plan.reduce.", "plan.outer.", "plan.mesh.replica"),
    *("plan.shuffle.", "data.order", "data.damaged"),
)
"""Keys (or their beginnings) that a run keeps: they fix its state and its samples."""


@dataclass(frozen=True, kw_only=True)
class ConfigChange:
    """A key with two values."""

    key: str
    """Key of the configuration, or name of a package."""
    old: Any
    """Value in the first configuration."""
    new: Any
    """Value in the second one."""

    @property
    def text(self) -> str:
        """The change in words: `epochs 30, now 40`."""
        return f"{self.key} {format_value(self.old)}, now {format_value(self.new)}"


def changed_keys(old: Experiment, new: Experiment) -> tuple[ConfigChange, ...]:
    """Return the keys whose values differ, in the order of the tree."""
    return _differences(flatten_config(old), flatten_config(new))


def changed_packages(old: ConfigLock, new: ConfigLock) -> tuple[ConfigChange, ...]:
    """Return the packages whose versions differ."""
    return _differences(old.packages, new.packages)


def check_resume(old: Experiment, new: Experiment) -> tuple[ConfigChange, ...]:
    """Return what a resumed run changes, all of it allowed.

    Raises:
        BadInput: a changed key that the state or the order of the samples rests on, or
            weights that would move more often, or less, in a step.
    """
    changes = changed_keys(old, new)
    _check_updates_per_step(old, new)
    barred = [change for change in changes if _is_fixed(change.key)]
    if not barred:
        return changes
    raise BadInput(
        f"the run was started with another {barred[0].key}",
        rule="a resumed run keeps its network, its samples, its number format, and "
        "how its devices sum",
        values="; ".join(change.text for change in barred),
        remedy=[
            " ".join(format_override(change.key, change.old) for change in barred),
            f"or start another run: {format_override('run.name', f'{new.run.name}-2')}",
        ],
    )


def check_same_samples(old: SampleFingerprints, new: SampleFingerprints) -> None:
    """Refuse to go on with other samples than a run was started with.

    Args:
        old: what its lock says; a part that it does not name may be any.
        new: what was opened.

    Raises:
        BadInput: the part of the data set that is another one.
    """
    changed = [part for part, name in old.items() if new.get(part, name) != name]
    if changed:
        raise BadInput(
            f"the {changed[0]} samples are not those that the run was started with",
            rule="a resumed run keeps its samples and their order",
            values="; ".join(f"{p}: {old[p]}, now {new[p]}" for p in changed),
            remedy=(
                "data.dir=, data.path= or data.name= as they were",
                "or start another run: run.name=NAME",
            ),
        )


def _check_updates_per_step(old: Experiment, new: Experiment) -> None:
    """Refuse another number of updates a step: the optimizer's state counts them."""
    was, now = (
        updates_per_step(each.plan, each.optim.accumulate) for each in (old, new)
    )
    if was != now:
        raise BadInput(
            "the run was started with another number of updates a step",
            rule="a resumed run moves its weights as often in a step as before, once "
            "or, with a schedule without a flush, several times",
            values=f"{was} with plan.pipe.schedule = {old.plan.pipe.schedule}, "
            f"optim.accumulate = {old.optim.accumulate}; now {now} with "
            f"{new.plan.pipe.schedule}, {new.optim.accumulate}",
            remedy=(
                f"plan.pipe.schedule={old.plan.pipe.schedule} "
                f"optim.accumulate={old.optim.accumulate}",
                "or start another run: "
                f"{format_override('run.name', f'{new.run.name}-2')}",
            ),
        )


def _is_fixed(key: str) -> bool:
    return any(
        key == fixed or key.startswith(fixed) for fixed in RESUME_FIXED_KEYS if fixed
    )


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(key=key, old=old.get(key), new=new.get(key))
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )
