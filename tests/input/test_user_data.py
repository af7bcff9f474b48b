"""A function of one's own gives samples: arrays, or sources."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import is_known, open_data

FILE = """
import numpy as np
from jaxdist.input.sources import ArraySource

def part(n):
    return {"image": np.zeros((n, 4, 4, 1)), "label": [0] * n}

def arrays():
    return part(6), part(2)

def sources():
    return ArraySource({"label": np.arange(5)}), ArraySource({"label": np.arange(1)})

def one():
    return part(6)

def wrong():
    return part(6), 3

def uneven():
    return {"image": np.zeros((3, 2)), "label": np.zeros(4)}, part(2)

def failing():
    raise KeyError("no labels")
"""


@pytest.fixture
def opened(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)

    def open_by_name(name):
        config = DataConfig(name=f"{tmp_path}/mine.py:{name}")
        assert is_known(config)
        return open_data(config)

    return open_by_name


@pytest.mark.parametrize(("name", "sizes"), [("arrays", (6, 2)), ("sources", (5, 1))])
def test_arrays_and_sources_are_samples(opened, name, sizes):
    train, test = opened(name)
    assert (len(train), len(test)) == sizes
    assert train.get(np.array([1]))["label"].shape == (1,)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one", "it returned dict"),
        ("wrong", "one of the two is int"),
        ("uneven", "image: 3, label: 4"),
        ("failing", "KeyError: 'no labels'"),
        ("array", "did you mean"),
    ],
)
def test_what_gives_no_samples_is_refused(opened, name, said):
    with pytest.raises(BadInput, match=said):
        opened(name)
