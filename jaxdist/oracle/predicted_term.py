"""A term: one number of a run, as it was predicted and as it was measured."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TermComparison:
    """One number of a run."""

    name: str
    """`step`, `memory`, a term of the step, or a layer."""
    unit: str
    """`s` or `B`."""
    predicted: float
    """What the oracle said."""
    measured: float | None
    """What was seen; None where a run does not tell it apart."""

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured, not below 0."""
        if not self.measured:
            return None
        return max(0.0, 1 - abs(self.predicted - self.measured) / self.measured)

    @property
    def abs_error(self) -> float:
        """How far apart the two are; nothing where there is one alone."""
        return 0.0 if self.measured is None else abs(self.measured - self.predicted)
