"""What is best: a metric of evaluations, highest or lowest."""

import math
from dataclasses import dataclass
from typing import Final, Self

from jaxdist.core.errors import BadInput

_MINIMIZED: Final = frozenset(
    {"loss", "perplexity", "bits_per_byte", "mae", "rmse", "relative_l2"}
)
"""Metrics of which the lowest is best, unless the key says otherwise."""


@dataclass(frozen=True, kw_only=True)
class MetricGoal:
    """A metric of an evaluation, and whether its highest or its lowest value is best.

    >>> MetricGoal.parse("loss")
    MetricGoal(metric='loss', maximize=False)
    >>> MetricGoal.parse("min:error").is_better(0.1, than=0.2)
    True
    """

    metric: str
    """Its name."""
    maximize: bool
    """Whether the highest value is best."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `METRIC`, `min:METRIC` or `max:METRIC`.

        Without a word in front the lowest loss, perplexity, bits a byte or error is
        best, and the highest of any other.

        Raises:
            BadInput: another word in front, or no name.
        """
        word, _, metric = text.rpartition(":")
        if word not in ("", "min", "max") or not metric:
            raise BadInput(
                "no metric says which checkpoint is best",
                rule="checkpoint.best is METRIC, min:METRIC or max:METRIC",
                values=f"checkpoint.best = {text}",
                remedy="checkpoint.best=accuracy",
            )
        return cls(
            metric=metric,
            maximize=word == "max" or (not word and metric not in _MINIMIZED),
        )

    def is_better(self, value: float, *, than: float) -> bool:
        """Whether a value beats another; NaN beats nothing, and everything beats it."""
        if math.isnan(value) or math.isnan(than):
            return not math.isnan(value)
        return value > than if self.maximize else value < than


@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best checkpoint of a folder."""

    step: int
    """Steps done."""
    metric: str
    """The metric that it is best in."""
    value: float
    """Value of the metric."""
