"""Labels and images in the forms of other libraries are taken, or refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data
from jaxdist.input.sample_forms import class_labels
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import ArraySource

Y = np.arange(24) % 3
X = np.random.default_rng(0).random((24, 6, 5, 1)).astype(np.float32)
FEATURES = {"label": Feature(is_open=True)}
FORMS = {
    "column": Y[:, None],
    "one_hot": np.eye(3, dtype=np.float32)[Y],
    "bool_one_hot": np.eye(3, dtype=bool)[Y],
    "words": np.array(["ant", "bee", "cow"])[Y],
    "words_column": np.array(["ant", "bee", "cow"])[Y][:, None],
    "bytes": np.array([b"ant", b"bee", b"cow"])[Y],
}


def save(path, label=Y, image=X):
    np.savez(
        path,
        **{"train_image": image[:16], "train_label": label[:16]},
        **{"test_image": image[16:], "test_label": label[16:]},
    )
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_labels_of_other_forms_are_classes(tmp_path, form):
    path = save(tmp_path / "my.npz", FORMS[form])
    train, test = open_data(DataConfig(name="numpy", path=path), FEATURES)
    assert train.get(np.arange(16))["label"].tolist() == Y[:16].tolist()
    assert test.get(np.arange(8))["label"].tolist() == Y[16:].tolist()
    assert train.classes == test.classes == 3
    named = "words" in form or form == "bytes"
    assert train.class_names == (("ant", "bee", "cow") if named else ())


def test_an_objective_of_ones_own_sees_labels_as_they_are(tmp_path):
    path = save(tmp_path / "my.npz", FORMS["one_hot"])
    train, _ = open_data(DataConfig(name="numpy", path=path))
    assert train.get(np.arange(2))["label"].shape == (2, 3)


class Own:
    fingerprint = "own"

    def __init__(self, label):
        self.label = label

    def __len__(self):
        return len(Y)

    def get(self, ids):
        return {"image": X[ids], "label": self.label[ids]}


@pytest.mark.parametrize("form", ["column", "one_hot"])
def test_sources_of_ones_own_have_such_labels_too(form):
    own = check_source(Own(FORMS[form]))
    train, _ = class_labels(own, own)
    assert train.get(np.array([4, 2]))["label"].tolist() == [1, 2]
    assert train.fingerprint == "own"


def test_rows_that_are_not_one_hot_later_are_refused():
    label = np.array(FORMS["one_hot"])
    label[7] = 0.5
    own = check_source(Own(label))
    train, _ = class_labels(own, own)
    with pytest.raises(BadInput, match="not one-hot"):
        train.get(np.arange(8))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_are_moved_where_they_are_said_to_be(tmp_path, channels):
    image = np.repeat(X, channels, -1)
    path = save(tmp_path / "my.npz", image=np.moveaxis(image, -1, 1))
    config = DataConfig(name="numpy", path=path, channel_dim="first")
    train, _ = open_data(config, FEATURES)
    np.testing.assert_array_equal(train.get(np.arange(4))["image"], image[:4])
    assert train.classes == 3


def test_a_field_has_its_channels_moved_as_its_image_has(tmp_path):
    field = np.arange(4 * 6 * 5 * 2.0).reshape(4, 6, 5, 2)
    images = {
        f"{part}_{key}": np.moveaxis(field, -1, 1)
        for part in ("train", "test")
        for key in ("image", "target")
    }
    np.savez(tmp_path / "fields.npz", **images)
    path = str(tmp_path / "fields.npz")
    config = DataConfig(name="numpy", path=path, channel_dim="first")
    spec = {"image": Feature(shape=(6, 5, 2)), "target": Feature(shape=(6, 5, 2))}
    sample = open_data(config, spec)[0].get(np.arange(4))
    np.testing.assert_array_equal(sample["image"], field)
    np.testing.assert_array_equal(sample["target"], field)


def test_a_setting_that_does_nothing_is_refused():
    with pytest.raises(BadInput, match="where they are"):
        open_data(DataConfig(name="digits", channel_dim="first"))


@settings(max_examples=80)
@given(
    shape=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    dtype=st.sampled_from(["int32", "uint8", "float32", "bool", "U3", "S2"]),
    seed=st.integers(0, 99),
)
def test_labels_are_one_number_a_sample_or_as_they_were(shape, dtype, seed):
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 3, (12, *shape)).astype(dtype)
    arrays = [{"x": np.arange(6), "label": part} for part in (label[:6], label[6:])]
    try:
        parts = class_labels(*map(ArraySource, arrays))
    except BadInput as error:
        refused = error
    else:
        for part, given_arrays in zip(parts, arrays, strict=True):
            found = part.get(np.arange(6))["label"]
            if found.dtype != np.int32 or found.ndim != 1 or hasattr(part, "classes"):
                assert found.shape in ((6,), given_arrays["label"].shape)
            else:
                np.testing.assert_array_equal(found, given_arrays["label"])
            if hasattr(part, "classes"):
                assert 0 <= found.min() <= found.max() < part.classes
        return
    assert all((refused.rule, refused.values, refused.remedy))


NETWORK = """
import jax
from flax import nnx
from jaxdist.core.object_reference import object_reference
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Conv, GlobalMean, Linear
from jaxdist.models import Chain, ModelConfig

class Stage(nnx.Module):
    def __init__(self, a, b, rngs):
        self.conv = Conv(a, b, (3, 3), rngs=rngs)
    def __call__(self, x):
        return jax.nn.relu(self.conv(x))

class Net(Chain):
    def __init__(self, *, config, rngs):
        super().__init__({"a": Stage(1, 4, rngs), "mean": GlobalMean(),
            "head": Linear(4, config.classes or 3, rngs=rngs)})

def small() -> Experiment:
    return Experiment(name="small", epochs=1,
        data=DataConfig(name="numpy", batch=8, shift=0),
        model=ModelConfig(name=object_reference(Net)), plan=Plan(mesh=MeshShape(data=1)))
"""


@pytest.mark.parametrize(
    ("form", "image", "code", "said"),
    [
        ("one_hot", X, 0, ""),
        ("words", X, 0, ""),
        ("column", np.moveaxis(X, -1, 1), 2, "data.channel_dim=first"),
        ("column", X[..., 0], 2, "image[..., None]"),
        ("column", X.astype(complex), 2, "image is complex128"),
    ],
)
def test_a_run_takes_such_arrays_or_refuses_them(
    tmp_path, job, form, image, code, said
):
    (tmp_path / "net.py").write_text(NETWORK)
    path = save(tmp_path / "my.npz", FORMS[form], image)
    words = f"data.path={path}", f"run.dir={tmp_path}/runs"
    found, _, err = job.call("train", f"{tmp_path}/net.py:small", *words)
    assert (found, said in err) == (code, True), err
    assert code == 0 or not (tmp_path / "runs").exists()
