"""Sample forms: labels and images as other libraries have them, in this package's form.

Labels [N, 1], one-hot or in words become whole numbers [N]; images that are said to
have their channels first become [N, H, W, C].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.arrays import LabelledArrays
from jaxdist.input.sources import (
    Arrays,
    ArraySource,
    EpochVaryingSource,
    SampleIds,
    Source,
)


def class_labels(train: Source, test: Source) -> tuple[Source, Source]:
    """Return samples whose `label` is the number of a class, whatever form it has.

    Those that have it already, or in no form that is known, are returned as they are.

    Args:
        train: samples to train on.
        test: those held out, whose classes are the same.

    Raises:
        BadInput: one-hot rows of different lengths, or labels below 0.
    """
    parts = [train, test]
    # No subclass: those know their classes already.
    if all(type(part) is ArraySource and "label" in part.arrays for part in parts):
        arrays = [part.arrays for part in parts if isinstance(part, ArraySource)]
        return _class_arrays(*arrays) or (train, test)
    return _with_class_labels(train), _with_class_labels(test)


def _class_arrays(train: Arrays, test: Arrays) -> tuple[Source, Source] | None:
    """Return arrays with labels as classes; None where they are classes already."""
    labels, names = [np.asarray(part["label"]) for part in (train, test)], ()
    kinds = {array.dtype.kind for array in labels}
    if kinds <= set("US") and all(
        array.ndim == 1 or _is_column(array) for array in labels
    ):
        # Sorted over both parts, so that a number is the same word in each.
        words = [array.reshape(len(array)).astype(str) for array in labels]
        found, every = np.unique(np.concatenate(words), return_inverse=True)
        names = tuple(found.tolist())
        labels = [every[: len(words[0])], every[len(words[0]) :]]
        count = len(names)
    elif all(_is_column(array) for array in labels):
        labels = [array[:, 0] for array in labels]
        if not kinds <= set("iu"):  # numbers of a table, whole or refused later
            first, second = (
                ArraySource({**part, "label": array})
                for part, array in zip((train, test), labels, strict=True)
            )
            return first, second
        if min(int(array.min(initial=0)) for array in labels) < 0:
            raise BadInput(
                "there are labels below 0",
                rule="labels are the numbers of classes, from 0",
                values=f"the least is {min(int(x.min(initial=0)) for x in labels)}",
                remedy="label - label.min()",
            )
        count = 1 + max(int(array.max(initial=0)) for array in labels)
    elif all(_is_one_hot(array) for array in labels):
        sizes = sorted({array.shape[1] for array in labels})
        if len(sizes) > 1:
            raise BadInput(
                "one-hot labels of the two parts have different classes",
                rule="a row has a place for each class, in both parts",
                values=f"rows of {sizes[0]} and of {sizes[-1]}",
                remedy="the same classes in train and test",
            )
        (count,) = sizes
        labels = [array.argmax(1) for array in labels]
    else:
        return None
    made = [
        LabelledArrays({**part, "label": array.astype(np.int32)}, count, names)
        for part, array in zip((train, test), labels, strict=True)
    ]
    return made[0], made[1]


class _ClassLabels:
    """A source whose labels [n, 1] or one-hot become whole numbers [n]."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        return self._in_form(self._source.get(ids))

    @property
    def fingerprint(self) -> str:
        """That of the samples."""
        return self._source.fingerprint

    def _in_form(self, arrays: Arrays) -> Arrays:
        label = arrays["label"]
        if _is_column(label):
            return {**arrays, "label": label[:, 0]}
        if not _is_one_hot(label):
            raise BadInput(
                "labels are not one-hot in every batch",
                rule="a row has a 1 in the place of its class, and 0 elsewhere",
                values=f"label is {list(label.shape)}, as {label[:1].tolist()}",
                remedy="label.argmax(-1), where the largest is the class",
            )
        return {**arrays, "label": label.argmax(1).astype(np.int32)}


class _EpochVaryingClassLabels(_ClassLabels):
    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read samples as they are in their epochs."""
        assert isinstance(self._source, EpochVaryingSource)
        return self._in_form(self._source.vary(ids, epochs, seed))


def _with_class_labels(source: Source) -> Source:
    """Return a source of one's own with labels [n], by the form of its first sample."""
    from jaxdist.input.sample_validation import CheckedSource

    # `check_source` wraps those of one's own, and no other.
    if not isinstance(source, CheckedSource):
        return source
    label = source.get(np.zeros(1, np.int64)).get("label")
    if label is None or not (_is_column(label) or _is_one_hot(label)):
        return source
    is_varying = isinstance(source, EpochVaryingSource)
    return (_EpochVaryingClassLabels if is_varying else _ClassLabels)(source)


def channels_last(parts: Sequence[Source]) -> list[Source]:
    """Return arrays whose images [N, C, H, W] have their channels last.

    Args:
        parts: arrays of samples.

    Raises:
        BadInput: samples that are no arrays, or no images.
    """
    moved: list[Source] = []
    for part in parts:
        image = part.arrays.get("image") if isinstance(part, ArraySource) else None
        if not isinstance(part, ArraySource) or image is None or image.ndim < 4:
            raise BadInput(
                "the channels of these samples cannot be moved",
                rule="data.channel_dim=first is for arrays with an image [N, C, H, W]",
                values=f"{type(part).__name__}, image "
                f"{None if image is None else list(image.shape)}",
                remedy="data.channel_dim=last",
            )
        # A target that is a field over the image's pixels has its channels there too.
        # Views: an array that is mapped stays where it is.
        arrays = {
            key: np.moveaxis(array, 1, -1)
            if key in ("image", "target") and array.ndim == image.ndim
            else array
            for key, array in part.arrays.items()
        }
        moved.append(
            LabelledArrays(arrays, part.classes, part.class_names)
            if isinstance(part, LabelledArrays)
            else ArraySource(arrays)
        )
    return moved


def _is_column(label: NDArray[Any]) -> bool:
    return label.ndim == 2 and label.shape[1] == 1


def _is_one_hot(label: NDArray[Any]) -> bool:
    """Tell whether each row has one 1 among zeros."""
    # A single column holds numbers of classes, even where all of them are 1.
    if label.ndim != 2 or label.shape[1] < 2 or label.dtype.kind not in "biuf":
        return False
    ones = label == 1
    return bool((ones.sum(1) == 1).all() and ((label == 0) | ones).all())
