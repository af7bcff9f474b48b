"""Quality: how far an order of samples is from one drawn from all of them.

Two numbers an epoch, for partitions of n samples that exchange k = q n of them:

    home fraction      h_t = 1/V + (1 - 1/V) L^t,   L = 1 - q V / (V - 1)
    class distance     TV_t = sqrt((TV_0 L^t)^2 + TV_r^2)

the part of samples in their first partition, and the mean over partitions of half the
sum of differences between the parts of each class there and overall. TV_r is that of a
random partition,

    TV_r = sum_c sqrt(p_c (1 - p_c) / (2 pi n)),

0.5 E|x| of a normal approximation. The start is forgotten when both parts of TV_t are
equal: t* = ln(TV_0 / TV_r) / -ln L.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.local_shuffle.shuffle import PartialShuffle

Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class ShuffleQuality:
    """A forecast for partitions that exchange some of their samples.

    Args:
        shuffle: the partitions.
        first: class distance before the first exchange, TV_0; none: not known.
        floor: class distance of random partitions, TV_r.

    >>> shuffle = PartialShuffle.from_fraction(samples=8192, partitions=32, q=0.1)
    >>> distances = {"initial_class_distance": 0.875, "class_distance_floor": 0.075}
    >>> quality = ShuffleQuality(shuffle=shuffle, **distances)
    >>> round(quality.local_fraction(10), 3), round(quality.class_distance(10), 3)
    (0.351, 0.298)
    >>> round(quality.mixing_epochs)
    22
    """

    shuffle: PartialShuffle
    initial_class_distance: float | None = None
    class_distance_floor: float | None = None

    @property
    def decay(self) -> float:
        """L: what one epoch leaves of the difference from a random partition."""
        count, part = self.shuffle.partitions, self.shuffle.exchange_count
        # One partition is the whole data set, mixed at once.
        if count == 1:
            return 0.0
        return 1 - part / self.shuffle.slots * count / (count - 1)

    def local_fraction(self, epoch: int) -> float:
        """Return the part of samples that are in their first partition."""
        share = 1 / self.shuffle.partitions
        return float(share + (1 - share) * self.decay**epoch)

    def class_distance(self, epoch: int) -> float | None:
        """Return the class distance, 0 to 1; None where labels are not known."""
        if self.initial_class_distance is None or self.class_distance_floor is None:
            return None
        # What is observed at first has the noise of a partition in it as well.
        begin = math.sqrt(
            max(self.initial_class_distance**2 - self.class_distance_floor**2, 0.0)
        )
        return math.hypot(begin * self.decay**epoch, self.class_distance_floor)

    @property
    def mixing_epochs(self) -> float:
        """Epochs until as much of the class distance is noise as is left of it."""
        if (
            not self.initial_class_distance
            or not self.class_distance_floor
            or self.initial_class_distance <= self.class_distance_floor
        ):
            return 0.0
        # Nothing is exchanged (L = 1), or one epoch mixes all (L = 0).
        if not 0 < abs(self.decay) < 1:
            return 0.0 if self.decay == 0 else math.inf
        # L below 0 exchanges more than a random partition would: its size says how fast
        # the start is forgotten.
        return math.log(
            self.initial_class_distance / self.class_distance_floor
        ) / -math.log(abs(self.decay))


def predict_quality(
    shuffle: PartialShuffle, labels: Labels | None = None
) -> ShuffleQuality:
    """Forecast the quality of an order.

    Args:
        shuffle: the partitions.
        labels: of all samples, int [N]; none: only the home fraction is forecast.
    """
    if labels is None:
        return ShuffleQuality(shuffle=shuffle)
    parts = np.bincount(labels) / len(labels)
    # TV_r, class by class.
    spread = np.sqrt(parts * (1 - parts) / (2 * math.pi * shuffle.slots))
    first = measured_class_distance(shuffle, labels, 0)
    return ShuffleQuality(
        shuffle=shuffle,
        initial_class_distance=first,
        class_distance_floor=float(spread.sum()),
    )


def measured_class_distance(
    shuffle: PartialShuffle, labels: Labels, epoch: int
) -> float:
    """Measure the class distance of the partitions of an epoch: 0 to 1."""
    whole = np.bincount(labels) / len(labels)
    held = shuffle.locate(epoch, np.arange(shuffle.samples)).partition
    shape = shuffle.partitions, len(whole)
    # One histogram of (partition, class) pairs, not one a partition.
    both = np.bincount(held * shape[1] + labels, minlength=math.prod(shape))
    parts = both.reshape(shape)
    parts = parts / parts.sum(axis=1, keepdims=True)
    return float(abs(parts - whole).sum(axis=1).mean() / 2)


def measured_local_fraction(shuffle: PartialShuffle, epoch: int) -> float:
    """Measure the part of samples that are in their first partition in an epoch."""
    ids = np.arange(shuffle.samples)
    first, now = (shuffle.locate(e, ids).partition for e in (0, epoch))
    return float((first == now).mean())
