"""Start: how a sitting of a run begins, for all who look on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.job import Job
from jaxdist.train.callbacks import TrainingCallback
from jaxdist.train.program import Program

if TYPE_CHECKING:
    from jaxdist.train.checkpoint.restore import RestoredState


@dataclass(frozen=True, kw_only=True)
class TrainingSession:
    """How a sitting begins."""

    job: Job
    """What runs."""
    program: Program
    """The compiled step."""
    folder: RunFolder
    """Where its files go."""
    prepared: PreparedDevices
    """The devices."""
    resolved: ResolvedConfig
    """The configuration and who set it."""
    sample_counts: tuple[int, int]
    """Training and held-out samples."""
    restored: "RestoredState | None"
    """The checkpoint it goes on from, with those that were skipped."""
    all_reduce_choice: str = ""
    """How gradients are summed, where that was measured, as one line."""

    @property
    def start_step(self) -> int:
        """Steps done before."""
        return 0 if self.restored is None else int(self.restored.step)


class RunObserver(TrainingCallback, Protocol):
    """Someone who is told how a sitting begins, too."""

    def on_start(self, session: TrainingSession) -> None:
        """See the beginning, before the first step."""

    def print_line(self, text: str) -> None:
        """See a line that is meant for a person."""
