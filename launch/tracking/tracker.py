"""A tracker: three methods, and what they are told of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from jaxdist.core.files import write_atomic

TRACKING: Final = "tracking"
"""Folder in that of a run: a file for each tracker, with its name for the run."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told as a run begins, or is resumed."""

    name: str
    """Name of the run."""
    experiment: str
    """Name of its experiment."""
    folder: Path
    """Its files."""
    config: Mapping[str, Any]
    """Hyper-parameters: every value of the configuration by its key, `optim.lr`."""
    plan: str
    """The plan that runs, as JSON."""
    steps: int
    """Steps of the whole run."""
    start_step: int
    """Steps done before; those behind it are made, and logged, again."""

    def load_id(self, tracker: str) -> str | None:
        """Return what the run is called by a tracker; None where it is new there."""
        try:
            return (
                (self.folder / TRACKING / tracker).read_text(encoding="utf-8").strip()
            )
        except FileNotFoundError:
            return None

    def save_id(self, tracker: str, name: str) -> None:
        """Keep what the run is called by a tracker, so that it continues there."""
        # A file for each: trackers run side by side.
        (self.folder / TRACKING).mkdir(exist_ok=True)
        write_atomic(self.folder / TRACKING / tracker, f"{name}\n")


@dataclass(frozen=True, kw_only=True)
class TrackedEnd:
    """What a tracker is told as a run ends."""

    status: Literal["done", "stopped", "failed"]
    """done: every step was made; stopped: it was asked to end, and can be resumed."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the whole run: score, seconds, bytes."""
    files: tuple[Path, ...] = ()
    """Files that belong to the run: its report, its plan, its configuration."""


@runtime_checkable
class Tracker(Protocol):
    """Keeps what runs log. Process 0 calls it, in a thread of the tracker's own.

    What it raises ends no run: it is said once, and the tracker is left out.
    """

    def start(self, run: TrackedRun) -> int | None:
        """Begin, or continue a run that was resumed.

        Returns:
            The newest step that is kept already: those up to it are not logged again,
            and those behind it that the run made before are logged first. None: what
            is logged begins here.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the numbers of a step: `train/loss`, `test/accuracy`, `epoch`."""

    def end(self, summary: TrackedEnd) -> None:
        """Keep the outcome and the files, and close what is open."""
