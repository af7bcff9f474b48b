"""Order: which samples each step takes, from the step alone.

The samples come as an endless stream of epochs, each a permutation of all ids keyed by
(seed, epoch); step s takes positions s*batch ... s*batch + batch-1 of it. So a run
resumes anywhere on any number of hosts by knowing its step, and nothing is dropped.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.keyed_permutation import hash64, permute


class SampleOrder(Protocol):
    """Which samples each step takes."""

    @property
    def num_samples(self) -> int:
        """Samples in the data set."""

    @property
    def batch(self) -> int:
        """Samples a step, over all devices together."""

    @property
    def seed(self) -> int:
        """Another seed is another order, in every epoch."""

    def ids(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int32]:
        """Name the samples of a step's rows, of all if none are given: int32."""

    def epochs(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Name the epoch (from 0) of each of a step's rows: int64."""

    def steps(self, epochs: float) -> int:
        """Count the steps until this many epochs, or parts of one, are wholly drawn."""


@dataclass(frozen=True, kw_only=True)
class GlobalShuffleOrder:
    """Each epoch is a permutation of all samples.

    Args:
        num_samples: in the data set.
        batch: samples a step, over all devices together.
        seed: another seed is another order, in every epoch.

    >>> order = GlobalShuffleOrder(num_samples=10, batch=4, seed=0)
    >>> sorted(np.concatenate([order.ids(step) for step in range(5)])[:10].tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> order.epochs(2).tolist(), order.steps(1)
    ([0, 0, 1, 1], 3)
    """

    num_samples: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        # Ids are int32: jax has no int64 unless it is switched on.
        if not 1 <= self.num_samples < 2**31 or self.batch < 1:
            raise BadInput(
                "no order for this many samples",
                rule="1 to 2,147,483,647 samples, and at least one a step",
                values=f"{self.num_samples} samples, {self.batch} a step",
            )

    def ids(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int32]:
        """Name the samples of a step's rows, of all if none are given: int32."""
        # A step may hold rows of two epochs or more.
        epochs, places = np.divmod(self._positions(step, rows), self.num_samples)
        return permute(hash64(self.seed, epochs), places, self.num_samples).astype(
            np.int32
        )

    def epochs(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Name the epoch (from 0) of each of a step's rows: int64."""
        return self._positions(step, rows) // self.num_samples

    def steps(self, epochs: float) -> int:
        """Count the steps until this many epochs, or parts of one, are wholly drawn."""
        return math.ceil(epochs * self.num_samples / self.batch)

    def _positions(self, step: int, rows: NDArray[Any] | None) -> NDArray[np.int64]:
        """Positions of a step's rows in the endless stream: int64."""
        # In int64: positions in the stream of a long run pass 2^31.
        own = np.arange(self.batch, dtype=np.int64) if rows is None else rows
        return step * self.batch + own


@dataclass(frozen=True, kw_only=True)
class SourceOrder(GlobalShuffleOrder):
    """Each epoch is all samples as the source has them.

    Args:
        num_samples: in the data set.
        batch: samples a step, over all devices together.
        seed: changes nothing.

    >>> SourceOrder(num_samples=10, batch=4).ids(2).tolist()
    [8, 9, 0, 1]
    """

    def ids(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int32]:
        """Name the samples of a step's rows, of all if none are given: int32."""
        return (self._positions(step, rows) % self.num_samples).astype(np.int32)
