"""TFDS data sets of labelled images, prepared by TFDS itself, without TensorFlow."""

import io
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import is_known, open_data

WANTED = {"image": Feature(shape=(6, 6, 3)), "label": Feature(upper_bound=10)}


class Shades(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Grey squares, as dark as their number says."""

    VERSION = tfds.core.Version("1.0.0")
    url_infos: ClassVar = {}
    splits: ClassVar = {"train": 9, "validation": 4, "test": 2}
    label = tfds.features.ClassLabel(num_classes=3)

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "label": self.label,
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, _):
        return {name: self._generate_examples(n) for name, n in self.splits.items()}

    def _generate_examples(self, count):
        for i in range(count):
            file = io.BytesIO()
            Image.new("RGB", (10 + i, 12), (20 * i,) * 3).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": i % 3}


class ShadesWithoutTest(Shades, skip_registration=True):
    """The same with nothing held out."""

    splits: ClassVar = {"train": 3}


class ShadesWithNumbers(Shades, skip_registration=True):
    """The same with a number in place of a class."""

    label = tfds.features.Scalar(np.int64)


def prepare(kind, folder, file_format="array_record"):
    tfds.disable_progress_bar()
    kind(data_dir=folder, file_format=file_format).download_and_prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all data sets, three of them prepared."""
    home = tmp_path_factory.mktemp("tfds")
    for kind in (Shades, ShadesWithoutTest, ShadesWithNumbers):
        prepare(kind, home)
    return home


def opened(folder, name, wanted=WANTED):
    return open_data(DataConfig(name=name, dir=str(folder)), wanted)


@pytest.mark.parametrize("name", ["shades", "shades:1.0.0", "shades:1.*.*"])
def test_a_prepared_data_set_opens_by_name(folder, name):
    train, test = opened(folder, name)
    assert (len(train), len(test), train.classes) == (9, 4, 3)
    batch = train.get(np.arange(9))
    assert batch["image"].shape == (9, 6, 6, 3)
    shades = np.round((batch["image"][:, 0, 0, 0] * 0.229 + 0.485) * 255 / 20)
    assert sorted(shades.tolist()) == list(range(9))
    np.testing.assert_array_equal(batch["label"], shades.astype(int) % 3)
    assert train.fingerprint != test.fingerprint
    assert train.fingerprint == opened(folder, name)[0].fingerprint


def refused(folder, name):
    assert is_known(DataConfig(name=name, dir=str(folder)))
    with pytest.raises(BadInput) as caught:
        opened(folder, name)
    return caught.value


def test_a_data_set_that_is_not_prepared_says_how(tmp_path):
    error = refused(tmp_path, "imagenet2012")
    assert str(tmp_path) in error.values
    assert error.remedy[0] == (
        "pip install tensorflow && tfds build imagenet2012 --file_format=array_record "
        f"--data_dir={tmp_path} --manual_dir=FOLDER_OF_ITS_TAR_FILES"
    )
    assert any("data.name=synthetic" in line for line in error.remedy)
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_is_not_prepared(folder):
    assert refused(folder, "shades:2.0.0").what.endswith("is prepared here")


@pytest.mark.parametrize(
    ("name", "values"),
    [("shades_without_test", "splits are train"), ("shades_with_numbers", "it has")],
)
def test_data_sets_of_another_kind(folder, name, values):
    error = refused(folder, name)
    assert error.what == f"{name} is no data set of labelled images"
    assert values in error.values


def test_a_name_that_is_near_is_taken_for_a_slip(tmp_path):
    with pytest.raises(BadInput, match=r"did you mean data.name=imagenet2012"):
        opened(tmp_path, "imagenet")
