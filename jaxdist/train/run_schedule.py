"""The course: when a run evaluates, saves and ends, in steps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunSchedule:
    """When things happen, in steps; a pure reading of the configuration."""

    steps: int
    """Steps of the whole run."""
    samples: int
    """Training samples; an epoch draws each once."""
    batch: int
    """Samples a step; batches straddle epochs."""
    save_every: int
    """Steps from one checkpoint to the next."""
    skips: int = 0
    """Steps in a row that may be skipped before the run fails."""
    owed: bool = False
    """Whether the evaluation of the state that it goes on from was cut short."""

    def epoch(self, step: int) -> int:
        """Return the epoch, from 0, that the last sample of step `step` (from 1) is in.

        >>> RunSchedule(steps=60, samples=5, batch=2, save_every=5).epoch(3)
        1
        """
        return (step * self.batch - 1) // self.samples

    def complete(self, step: int) -> int:
        """Return how many epochs are wholly drawn after `step` steps."""
        return step * self.batch // self.samples

    def tests(self, step: int) -> bool:
        """Whether this step completes an epoch, or the run."""
        ends = self.complete(step) > self.complete(step - 1)
        return ends or step == self.steps

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self.save_every == 0 or step == self.steps
