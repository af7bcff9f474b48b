"""Provenance: a resolved configuration, and who set each of its values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.tree import flatten_config
from jaxdist.launch.config.value_text import format_value

SettingSource = Literal["default", "experiment", "command line"]
SETTING_SOURCE_NAMES: Final[tuple[SettingSource, ...]] = (
    "default",
    "experiment",
    "command line",
)
_NON_LAYOUT_KEYS: Final = ("plan.reduce.", "plan.shuffle.", "plan.outer.")
"""Keys of a plan that say nothing of devices."""


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """A configuration that is ready to run, with the origin of every value."""

    experiment: str
    """The experiment as it was asked for: a name, or the path of a file."""
    config: Experiment
    """All values."""
    sources: Mapping[str, SettingSource]
    """Who set the value of each key."""

    def describe(self, key: str) -> str:
        """Name a value and who set it, as errors do: `data.batch = 64 (experiment)`."""
        value = format_value(flatten_config(self.config)[key])
        return f"{key} = {value} ({self.sources[key]})"

    def keys_from(self, source: SettingSource) -> tuple[str, ...]:
        """Return the keys that this origin set."""
        return tuple(key for key, by in self.sources.items() if by == source)

    @property
    def plan_is_explicit(self) -> bool:
        """Whether the layout was asked for on the command line; then it never moves."""
        typed = self.keys_from("command line")
        layout = (key for key in typed if not key.startswith(_NON_LAYOUT_KEYS))
        return any(key.startswith("plan.") for key in layout)


def setting_sources(
    config: Experiment, override_keys: Collection[str]
) -> dict[str, SettingSource]:
    """Tell for every key who set it.

    Args:
        config: the resolved tree.
        override_keys: keys that were given on the command line.
    """
    default = flatten_config(Experiment(name=""))

    def origin(key: str, value: object) -> SettingSource:
        if key in override_keys:
            return "command line"
        return "default" if value == default[key] else "experiment"

    return {key: origin(key, value) for key, value in flatten_config(config).items()}
