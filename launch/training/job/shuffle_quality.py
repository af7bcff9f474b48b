"""The quality of partial shuffling: as it is predicted, and as it was measured."""

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.core.text.formatting import format_percent
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder, order_from_config
from jaxdist.input.local_shuffle.quality import (
    ShuffleQuality,
    measured_class_distance,
    measured_local_fraction,
    predict_quality,
)
from jaxdist.launch.config import Experiment

if TYPE_CHECKING:
    from jaxdist.input.order import SampleOrder
    from jaxdist.input.sources import Source

_MAX_LABELLED_SAMPLES: Final = 20_000
"""Samples up to which labels are read to measure an order: a pass over the data."""
_MAX_TRACED_SAMPLES: Final = 1_000_000
"""Samples times epochs up to which an order is traced back: seconds."""


def forecast_quality(
    shuffle: ShuffleConfig,
    config: Experiment,
    samples: int,
    labels: NDArray[np.integer[Any]] | None,
) -> ShuffleQuality:
    """Forecast the quality of an order with a part of the samples exchanged.

    Args:
        shuffle: the part, and the partitions.
        config: batch and seed.
        samples: of the training set.
        labels: theirs, int [N], or None.

    Raises:
        BadInput: partitions that the batch or the samples cannot fill.
    """
    order = order_from_config(
        shuffle, num_samples=samples, batch=config.data.batch, seed=config.seed
    )
    # A configuration with a part to exchange has this order.
    assert isinstance(order, PartialShuffleOrder)
    return predict_quality(order.shuffle, labels)


def read_labels(source: "Source") -> NDArray[np.integer[Any]] | None:
    """Read the label of every sample, int [N]; None where a sample has not one."""
    label = source.get(np.arange(min(len(source), 1))).get("label")
    if label is None or label.ndim != 1 or not np.issubdtype(label.dtype, np.integer):
        return None
    # Samples are read in parts: a whole data set of images may not fit into memory.
    parts = np.array_split(np.arange(len(source)), -(-len(source) // 4096))
    return np.concatenate([source.get(ids)["label"] for ids in parts])


def shuffle_line(order: "SampleOrder", epochs: float) -> str:
    """Say in a line how samples are exchanged; empty where each epoch draws from all.

    >>> from jaxdist.input.local_shuffle.shuffle import PartialShuffle
    >>> shuffle = PartialShuffle.from_fraction(samples=1437, partitions=64, q=0.1)
    >>> shuffle_line(PartialShuffleOrder(shuffle=shuffle, batch=64), 30)
    '2 of 22 samples of 64 partitions an epoch; 6.9 % at home after 30'
    """
    if not isinstance(order, PartialShuffleOrder):
        return ""
    shuffle = order.shuffle
    home = format_percent(ShuffleQuality(shuffle=shuffle).local_fraction(round(epochs)))
    return (
        f"{shuffle.exchange_count:,} of {shuffle.slots:,} samples of "
        f"{shuffle.partitions:,} partitions an epoch; {home} at home after {epochs:g}"
    )


def measure_shuffle_quality(
    order: "SampleOrder", source: "Source", epochs: float
) -> dict[str, Any] | None:
    """Measure how well an order has mixed samples, beside what was predicted.

    Args:
        order: of a run.
        source: its training samples.
        epochs: that were trained.

    Returns:
        Plain values; None where each epoch draws from all samples.
    """
    if not isinstance(order, PartialShuffleOrder):
        return None
    shuffle, count = order.shuffle, len(source)
    # Labels tell how far the classes of a partition are from those of the whole set.
    labels = read_labels(source) if count <= _MAX_LABELLED_SAMPLES else None
    quality = predict_quality(shuffle, labels)
    # Samples mix exponentially, so epochs 0, 1, 2, 4, ... and the last one show it; to
    # trace an order back to an epoch takes time for every epoch between.
    last = max(0, math.ceil(epochs) - 1)
    powers = (1 << n for n in range(last.bit_length()))
    traced = sorted({0, *(power for power in powers if power < last), last})
    rows = [
        {
            "epoch": epoch,
            "home": measured_local_fraction(shuffle, epoch),
            "home_forecast": quality.local_fraction(epoch),
            "distance": None
            if labels is None
            else measured_class_distance(shuffle, labels, epoch),
            "distance_forecast": quality.class_distance(epoch),
        }
        for epoch in traced
        if epoch * count <= _MAX_TRACED_SAMPLES
    ]
    return {
        "partitions": shuffle.partitions,
        "slots": shuffle.slots,
        "exchanged": shuffle.exchange_count,
        "floor": quality.class_distance_floor,
        "measured": rows,
    }
