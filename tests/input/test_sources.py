"""Sources give the samples asked for, as new arrays."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from jaxdist.core.errors import BadInput
from jaxdist.input.digits import NAME, VERSION, decode
from jaxdist.input.sources import ArraySource, TfdsSource, load_into_memory


@pytest.fixture(scope="module")
def split(digits_dir):
    builder = tfds.builder_from_directory(digits_dir / NAME / VERSION)
    return builder.as_data_source("test")


def test_an_array_source_gathers_copies():
    labels = np.arange(5)
    got = ArraySource({"label": labels}).get(np.array([3, 3, 0]))["label"]
    assert got.tolist() == [3, 3, 0]
    got[:] = 9
    assert labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arrays", "remedy"),
    [
        ({}, "above zero"),
        ({"a": np.zeros(0)}, "above zero"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "b[:2]"),
    ],
)
def test_arrays_that_are_no_data_set_are_refused(arrays, remedy):
    with pytest.raises(BadInput, match="one entry a sample") as caught:
        ArraySource(arrays)
    assert remedy in caught.value.remedy[0]


def test_a_fingerprint_names_the_content():
    def fingerprint(**arrays):
        return ArraySource(arrays).fingerprint

    same = fingerprint(a=np.arange(4), b=np.ones(4))
    assert same == fingerprint(b=np.ones(4), a=np.arange(4))
    others = [
        fingerprint(a=np.arange(4)[::-1], b=np.ones(4)),
        fingerprint(a=np.arange(4), c=np.ones(4)),
        fingerprint(a=np.arange(4), b=np.ones(4, np.float32)),
        fingerprint(a=np.arange(4).reshape(4, 1), b=np.ones(4)),
    ]
    assert len({same, *others}) == 5


def test_reading_where_it_lies_equals_reading_from_memory(split):
    source = TfdsSource(split, decode)
    ids = np.array([359, 0, 17, 0])
    lying, held = source.get(ids), load_into_memory(source).get(ids)
    assert lying.keys() == held.keys() == {"image", "label"}
    for name in lying:
        np.testing.assert_array_equal(lying[name], held[name])


def test_undecoded_features_are_stacked_as_they_are(split):
    batch = TfdsSource(split).get(np.arange(3))
    assert batch["image"].shape == (3, 8, 8)
    assert batch["image"].dtype == np.uint8


def test_a_tfds_fingerprint_tells_splits_apart(split, digits_dir):
    builder = tfds.builder_from_directory(digits_dir / NAME / VERSION)
    train = TfdsSource(builder.as_data_source("train"))
    assert TfdsSource(split).fingerprint == TfdsSource(split, decode).fingerprint
    assert TfdsSource(split).fingerprint != train.fingerprint
