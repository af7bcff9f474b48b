"""Start: how a sitting of a run begins, for all who look on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jaxdist.launch.config.provenance import Resolved
from jaxdist.launch.devices.prepare import Prepared
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.job import Job
from jaxdist.train.callbacks import Watcher
from jaxdist.train.program import Program

if TYPE_CHECKING:
    from jaxdist.train.checkpoint.restore import Restored


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a sitting begins."""

    job: Job
    """What runs."""
    program: Program
    """The compiled step."""
    folder: RunFolder
    """Where its files go."""
    prepared: Prepared
    """The devices."""
    resolved: Resolved
    """The configuration and who set it."""
    samples: tuple[int, int]
    """Training and held-out samples."""
    restored: "Restored | None"
    """The checkpoint it goes on from, with those that were skipped."""
    chosen: str = ""
    """How gradients are summed, where that was measured, as one line."""

    @property
    def step(self) -> int:
        """Steps done before."""
        return 0 if self.restored is None else int(self.restored.step)


class Onlooker(Watcher, Protocol):
    """Someone who is told how a sitting begins, too."""

    def begins(self, start: Start) -> None:
        """See the beginning, before the first step."""

    def note(self, text: str) -> None:
        """See a line that is meant for a person."""
