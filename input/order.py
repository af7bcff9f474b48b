"""Order: which samples each step takes, from the step alone.

The samples come as an endless stream of epochs, each a permutation of all ids keyed by
(seed, epoch); step s takes positions s*batch ... s*batch + batch-1 of it. So a run
resumes anywhere on any number of hosts by knowing its step, and nothing is dropped.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.keyed import key, permute


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order in which a run sees its samples.

    Args:
        n: samples in the data set.
        batch: samples a step, over all devices together.
        seed: another seed is another order, in every epoch.

    >>> order = Order(n=10, batch=4, seed=0)
    >>> sorted(np.concatenate([order.ids(step) for step in range(5)])[:10].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> order.epochs(2).tolist(), order.steps(1)
    ([0, 0, 1, 1], 3)
    """

    n: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.n < 2**31 or self.batch < 1:
            raise BadInput(
                "no order for this many samples",
                rule="1 to 2,147,483,647 samples, and at least one a step",
                values=f"{self.n} samples, {self.batch} a step",
            )

    def ids(self, step: int) -> NDArray[np.int32]:
        """Name the samples of a step (from 0): int32 [batch], each in [0, n)."""
        epochs, places = np.divmod(self._positions(step), self.n)
        return permute(key(self.seed, epochs), places, self.n).astype(np.int32)

    def epochs(self, step: int) -> NDArray[np.int64]:
        """Name the epoch (from 0) each sample of a step belongs to: int64 [batch]."""
        return self._positions(step) // self.n

    def steps(self, epochs: float) -> int:
        """Count the steps until this many epochs, or parts of one, are wholly drawn."""
        return math.ceil(epochs * self.n / self.batch)

    def _positions(self, step: int) -> NDArray[np.int64]:
        """Positions of a step in the endless stream: int64 [batch]."""
        return np.arange(step * self.batch, (step + 1) * self.batch, dtype=np.int64)
