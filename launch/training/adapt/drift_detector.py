"""Pace: how long steps take, and from when on they take longer, or shorter, for good.

    steps   1 ... 5      6 ... 20      21 ... 40     41 ... 48
            not looked   the pace:     as before     each of 8 in a row takes 1.3 times
            at           their median                the pace or more: a drift

Steps are held against those of the same sitting, not against a prediction: one that is
wrong by a factor is wrong all the time, and says nothing of what has changed.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

DRIFT_WARMUP_STEPS: Final = 5
"""First steps that are left out: they set up links, and caches are cold."""
BASELINE_STEPS: Final = 15
"""Steps whose median is the pace."""
DRIFT_RATIO: Final = 1.3
"""Times as long as the pace, or one over that, takes a step that drifts."""
DRIFT_WINDOW: Final = 8
"""Steps in a row that must do so."""
_MAX_WINDOW: Final = 128


@dataclass(frozen=True, kw_only=True)
class StepTimeDrift:
    """Steps that take longer than those before, or shorter."""

    since: int
    """First of them, counted from 1."""
    step: int
    """Last of them that was seen."""
    seconds: float
    """What they take: their median."""
    before: float
    """The pace of before."""

    @property
    def times(self) -> float:
        """Times as long as before."""
        return self.seconds / self.before

    @property
    def text(self) -> str:
        """The same for a person."""
        how = f"{self.times:.1f} times" if self.times > 1 else f"{self.times:.2f} of"
        return (
            f"a step takes {1e3 * self.seconds:,.0f} ms since step {self.since:,}, "
            f"{how} the {1e3 * self.before:,.0f} ms before"
        )


class DriftDetector:
    """Looks at the seconds of one step after the other.

    >>> pace = DriftDetector()
    >>> seen = [pace.seen(n, 0.1 if n < 41 else 0.4) for n in range(1, 60)]
    >>> [drift.text for drift in seen if drift]
    ['a step takes 400 ms since step 41, 4.0 times the 100 ms before']
    """

    def __init__(self) -> None:
        self.base: float | None = None
        self._row = DRIFT_WINDOW
        self.again()

    def again(self) -> None:
        """Begin anew: the next steps say what the pace is."""
        self.base = None
        self._left, self._first = DRIFT_WARMUP_STEPS, list[float]()
        self._last = deque[float](maxlen=self._row)

    def doubts(self) -> None:
        """Begin anew, and believe a drift only after twice as many steps."""
        self._row = min(2 * self._row, _MAX_WINDOW)
        self.again()

    def seen(self, step: int, step_s: float) -> StepTimeDrift | None:
        """Look at a step; a drift is returned once.

        Args:
            step: counted from 1.
            step_s: that it took.
        """
        if self._left:
            self._left -= 1
            return None
        if self.base is None:
            self._first.append(step_s)
            if len(self._first) == BASELINE_STEPS:
                self.base = median(self._first)
            return None
        self._last.append(step_s)
        if len(self._last) < self._row or not self._drifts(self.base):
            return None
        took, base = median(self._last), self.base
        self.again()
        return StepTimeDrift(
            since=step - self._row + 1, step=step, seconds=took, before=base
        )

    def _drifts(self, base: float) -> bool:
        longer = all(took >= DRIFT_RATIO * base for took in self._last)
        return longer or all(took <= base / DRIFT_RATIO for took in self._last)
