"""Data sets are found by name, and the settings cost nothing to import."""

import subprocess
import sys

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import dataset_names, open_data


def test_a_data_set_opens_by_name(digits_dir):
    train, test = open_data(DataConfig(dir=str(digits_dir)))
    assert (len(train), len(test)) == (1437, 360)
    assert {"digits", "moving_digits", "synthetic", "text"} <= set(dataset_names())


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("digit", "did you mean data.name=digits?"),
        ("xyz", "tfds build xyz"),
        ("", "data.name=<one of"),
        ("../x", "data.name=<one of"),
    ],
)
def test_an_unknown_name_gets_a_remedy_and_writes_nothing(tmp_path, name, remedy):
    with pytest.raises(BadInput) as refused:
        open_data(DataConfig(name=name, dir=str(tmp_path / "data")))
    assert remedy in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch", 0),
        ("eval_batch", 0),
        ("shift", -1),
        ("threads", 0),
        ("context", 0),
        ("size", 0),
        ("samples", 0),
        ("stride", 0),
    ],
)
def test_a_value_too_small_is_refused(key, value):
    with pytest.raises(BadInput, match=f"data.{key}={max(0, value + 1)}"):
        DataConfig(**{key: value})


def test_evaluation_takes_the_training_batch_unless_told():
    assert DataConfig(batch=32).eval_batch_size == 32
    assert DataConfig(batch=32, eval_batch=128).eval_batch_size == 128


def test_settings_and_names_import_nothing_heavy():
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import jaxdist.input.config, jaxdist.input.registry as registry\n"
        "registry.dataset_names()\n"
        "heavy = {'numpy', 'jax', 'grain', 'tensorflow_datasets', 'sklearn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
