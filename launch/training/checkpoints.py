"""Saving: the checkpoints of a run, each with what a reader needs to know of it."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.job import Job
from jaxdist.train.state import TrainState

if TYPE_CHECKING:
    from jaxdist.train.checkpoint.checkpoints import Checkpoints


def open_checkpoints(folder: RunFolder, keep: int) -> "Checkpoints":
    """Open the checkpoints of a run; nothing is made before the first save."""
    from jaxdist.train.checkpoint.checkpoints import Checkpoints

    return Checkpoints(folder.checkpoints, max_to_keep=keep)


class RunCheckpointer:
    """Saves states with what a reader needs to know of their run.

    Args:
        checkpoints: where.
        resolved: the configuration and who set it.
        job: what runs.
    """

    def __init__(
        self, checkpoints: "Checkpoints", resolved: ResolvedConfig, job: Job
    ) -> None:
        self._checkpoints, self._layout = checkpoints, job.layout
        self._metadata = {
            "experiment": resolved.experiment,
            "recipe": asdict(job.model_spec),
            "plan": json.loads(job.layout.plan.to_json()),
            "vocabulary": job.vocabulary,
        }

    def save(self, state: TrainState) -> None:
        """Keep a state; returns before it is on disk."""
        self._checkpoints.save(self._layout.to_checkpoint(state), self._metadata)
