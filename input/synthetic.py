"""Synthetic data: random samples of whatever shape the network wants, stored nowhere.

A sample is a function of its id alone: the same in every run, host and thread. There is
nothing to learn in it; it is for speed, memory and trying a configuration.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.feature_spec import Feature, FeatureSpec
from jaxdist.input.keyed_permutation import hash64
from jaxdist.input.sources import Arrays, SampleIds

_KEY_DOMAIN: Final = 0x53594E5448
"""Keeps these draws apart from those of the order and of augmentation."""


class SyntheticSource:
    """Random samples; a `Source`.

    Args:
        features: the arrays of a sample.
        samples: how many there are.
        first_id: number of the first one, so that two sources share no sample.

    >>> digits = SyntheticSource({"label": Feature(upper_bound=10)}, 100)
    >>> len(digits), digits.get(np.array([5, 7, 5]))["label"].tolist()
    (100, [3, 4, 3])
    """

    def __init__(
        self, features: FeatureSpec, samples: int, *, first_id: int = 0
    ) -> None:
        self._features, self._samples, self._first = dict(features), samples, first_id

    def __len__(self) -> int:
        return self._samples

    def get(self, ids: SampleIds) -> Arrays:
        """Draw samples: int [n] to new arrays [n, ...], float32 or int32."""
        # Features are numbered in the order of their names: a mapping has no order to
        # rely on.
        numbers = ids.astype(np.int64) + self._first
        return {
            name: np.stack(
                [_draw(field, k) for k in hash64(_KEY_DOMAIN, place, numbers)]
            )
            for place, (name, field) in enumerate(sorted(self._features.items()))
        }

    @property
    def fingerprint(self) -> str:
        """Name the samples: all that they are made of."""
        return (
            f"synthetic {sorted(self._features.items())} {self._samples} {self._first}"
        )


def open_synthetic(
    features: FeatureSpec, samples: int
) -> tuple[SyntheticSource, SyntheticSource]:
    """Return `samples` to train on, and an eighth as many others, held out.

    Raises:
        BadInput: nothing is known of what the network reads.
    """
    if not features:
        raise BadInput(
            "synthetic data has no shape",
            rule="synthetic data has the shape that a network of the registry reads",
            values="the network is one of your own",
            remedy="a data set of your own: DataConfig(name=name_of(my_data))",
        )
    # Ids of held-out samples follow those of training: none is in both.
    held_out = max(1, samples // 8)
    return SyntheticSource(features, samples), SyntheticSource(
        features, held_out, first_id=samples
    )


def _draw(field: Feature, seed: np.uint64) -> NDArray[Any]:
    """Draw one array: whole numbers, or reals evenly spread over [-1, 1]."""
    # One generator a sample: it depends on the id alone.
    draw = np.random.Generator(np.random.Philox(key=int(seed)))
    if field.upper_bound is not None:
        return draw.integers(field.upper_bound, size=field.shape, dtype=np.int32)
    # A byte a number: an image of 224 x 224 takes 0.2 ms, not the 2 ms of normals.
    bytes_ = draw.integers(256, size=field.shape, dtype=np.uint8)
    return bytes_ * np.float32(2 / 255) - np.float32(1)
