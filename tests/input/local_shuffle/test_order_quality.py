"""What is forecast of an order is what is then measured."""

import numpy as np
import pytest

from jaxdist.input.local_shuffle.quality import (
    ShuffleQuality,
    measured_class_distance,
    measured_local_fraction,
    predict_quality,
)
from jaxdist.input.local_shuffle.shuffle import PartialShuffle

SORTED = np.repeat(np.arange(10), 820)[:8192]


def shuffle_of(q, partitions=32):
    return PartialShuffle.from_fraction(
        samples=8192, partitions=partitions, q=q, seed=3
    )


@pytest.mark.parametrize("q", [0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("epoch", [1, 5, 20])
def test_the_home_fraction_is_the_forecast(q, epoch):
    measured = measured_local_fraction(shuffle_of(q), epoch)
    assert predict_quality(shuffle_of(q)).local_fraction(epoch) == pytest.approx(
        measured, abs=0.012
    )


@pytest.mark.parametrize("q", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("epoch", [0, 1, 5, 20])
def test_the_class_distance_is_the_forecast(q, epoch):
    found = predict_quality(shuffle_of(q), SORTED).class_distance(epoch)
    measured = measured_class_distance(shuffle_of(q), SORTED, epoch)
    assert found == pytest.approx(measured, abs=0.015)


def test_a_random_partition_is_at_the_floor():
    labels = np.random.default_rng(0).permutation(SORTED)
    found = predict_quality(shuffle_of(0.1), labels)
    assert found.initial_class_distance == pytest.approx(
        found.class_distance_floor, rel=0.1
    )
    assert found.mixing_epochs < 1


@pytest.mark.parametrize(("q", "epochs"), [(0.05, 46), (0.1, 22), (0.3, 7)])
def test_a_larger_part_is_forgotten_sooner(q, epochs):
    assert predict_quality(shuffle_of(q), SORTED).mixing_epochs == pytest.approx(
        epochs, abs=2
    )


def test_nothing_is_forgotten_without_an_exchange():
    assert predict_quality(shuffle_of(0.0), SORTED).mixing_epochs == float("inf")


def test_one_partition_has_nothing_to_forget():
    quality = ShuffleQuality(
        shuffle=shuffle_of(0.5, partitions=1),
        initial_class_distance=0.0,
        class_distance_floor=0.0,
    )
    assert quality.local_fraction(3) == 1
    assert quality.mixing_epochs == 0
