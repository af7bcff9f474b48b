"""Shuffling: what an experiment's exchange of samples comes to, before it trains."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.shuffle import Shuffle
from jaxdist.core.units import percent
from jaxdist.input.partial import PartialOrder, order_of
from jaxdist.input.quality import Quality, forecast
from jaxdist.launch.config import Experiment

if TYPE_CHECKING:
    from jaxdist.input.order import Order
    from jaxdist.input.sources import Source


def quality_of(
    asked: Shuffle,
    config: Experiment,
    samples: int,
    labels: NDArray[np.integer[Any]] | None,
) -> Quality:
    """Forecast the quality of an order with a part of the samples exchanged.

    Args:
        asked: the part, and the partitions.
        config: batch and seed.
        samples: of the training set.
        labels: theirs, int [N], or None.

    Raises:
        BadInput: partitions that the batch or the samples cannot fill.
    """
    order = order_of(asked, samples=samples, batch=config.data.batch, seed=config.seed)
    assert isinstance(order, PartialOrder)
    return forecast(order.shuffle, labels)


def labels_of(source: "Source") -> NDArray[np.integer[Any]] | None:
    """Read the label of every sample, int [N]; None where a sample has not one."""
    label = source.get(np.arange(min(len(source), 1))).get("label")
    if label is None or label.ndim != 1 or not np.issubdtype(label.dtype, np.integer):
        return None
    parts = np.array_split(np.arange(len(source)), -(-len(source) // 4096))
    return np.concatenate([source.get(ids)["label"] for ids in parts])


def shuffle_line(order: "Order", epochs: float) -> str:
    """Say in a line how samples are exchanged; empty where they are not held apart.

    >>> from jaxdist.input.shuffle import PartialShuffle
    >>> shuffle = PartialShuffle.of(samples=1437, partitions=64, q=0.1)
    >>> shuffle_line(PartialOrder(shuffle=shuffle, batch=64), 30)
    '2 of 22 samples of 64 partitions an epoch; 6.9 % at home after 30'
    """
    if not isinstance(order, PartialOrder):
        return ""
    shuffle = order.shuffle
    home = percent(Quality(shuffle=shuffle).home(round(epochs)))
    return (
        f"{shuffle.exchanged:,} of {shuffle.slots:,} samples of "
        f"{shuffle.partitions:,} partitions an epoch; {home} at home after {epochs:g}"
    )
