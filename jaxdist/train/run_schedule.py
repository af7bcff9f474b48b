"""The course: when a run evaluates, saves and ends, in steps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunSchedule:
    """When things happen, in steps; a pure reading of the configuration."""

    steps: int
    """Steps of the whole run."""
    samples: int
    """Training samples; an epoch draws each once."""
    batch_size: int
    """Samples a step; batches straddle epochs."""
    checkpoint_interval: int
    """Steps from one checkpoint to the next."""
    max_consecutive_skips: int = 0
    """Steps in a row that may be skipped before the run fails."""
    resume_evaluation: bool = False
    """Whether the evaluation of the state that it goes on from was cut short."""

    def epoch_of(self, step: int) -> int:
        """Return the epoch, from 0, that the last sample of step `step` (from 1) is in.

        >>> schedule = RunSchedule(
        ...     steps=60, samples=5, batch_size=2, checkpoint_interval=5
        ... )
        >>> schedule.epoch_of(3)
        1
        """
        return (step * self.batch_size - 1) // self.samples

    def completed_epochs(self, step: int) -> int:
        """Return how many epochs are wholly drawn after `step` steps."""
        return step * self.batch_size // self.samples

    def is_evaluation_step(self, step: int) -> bool:
        """Whether this step completes an epoch, or the run."""
        ends = self.completed_epochs(step) > self.completed_epochs(step - 1)
        return ends or step == self.steps

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.checkpoint_interval == 0 or step == self.steps
