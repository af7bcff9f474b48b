"""When a run evaluates, saves and ends, in steps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunSchedule:
    """When a run evaluates, saves and ends, in steps."""

    steps: int
    """Steps of the whole run."""
    samples: int
    """Training samples; an epoch is one pass over them."""
    batch_size: int
    """Samples of a step; a batch may span two epochs."""
    checkpoint_interval: int
    """Steps from one checkpoint to the next."""
    max_consecutive_skips: int = 0
    """Steps in a row that may be skipped before the run fails."""
    resume_evaluation: bool = False
    """Whether the evaluation of the restored state was interrupted."""

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, of the last sample of step `step`, from 1.

        >>> schedule = RunSchedule(
        ...     steps=60, samples=5, batch_size=2, checkpoint_interval=5
        ... )
        >>> schedule.epoch_of(3)
        1
        """
        return (step * self.batch_size - 1) // self.samples

    def is_evaluation_step(self, step: int) -> bool:
        """Whether this step completes an epoch, or the run."""
        # A batch larger than the data set can complete several epochs at once.
        before, now = ((s * self.batch_size) // self.samples for s in (step - 1, step))
        return now > before or step == self.steps

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.checkpoint_interval == 0 or step == self.steps
