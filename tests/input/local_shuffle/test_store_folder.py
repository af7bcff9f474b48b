"""A store of samples deletes files of its own alone."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.store import ArrayStore

EXAMPLE = {"image": np.zeros((1, 4), np.float32)}


def test_files_of_something_else_stay(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"not ours")
    with pytest.raises(BadInput, match="something else") as refused:
        ArrayStore(EXAMPLE, 3, tmp_path)
    assert "weights.bin" in refused.value.values
    assert [path.name for path in tmp_path.iterdir()] == ["weights.bin"]
    assert (tmp_path / "weights.bin").read_bytes() == b"not ours"


def test_a_store_of_other_samples_is_made_anew(tmp_path):
    ArrayStore(EXAMPLE, 3, tmp_path, "one")
    assert len(ArrayStore(EXAMPLE, 5, tmp_path, "two")) == 0
    # As a process leaves it that dies in between.
    (tmp_path / "store.json").write_text("{}")
    assert len(ArrayStore(EXAMPLE, 5, tmp_path, "two")) == 0
