"""A store of samples deletes files of its own alone."""

import resource

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.store import ArrayStore

EXAMPLE = {"image": np.zeros((1, 4), np.float32)}
SMALL, SLOTS = {"x": np.zeros(1, np.float32)}, 1 << 16


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


def test_a_store_whose_room_was_not_all_taken_is_made_anew(tmp_path):
    # The index, of 16 bytes a slot, does not fit: as where a process dies before it.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SLOTS * 8, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            ArrayStore(SMALL, SLOTS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    ArrayStore(SMALL, SLOTS, tmp_path)
    # Without holes: a write to one, on a disk that is full by then, would be SIGBUS.
    assert (tmp_path / "notes.bin").stat().st_blocks * 512 >= SLOTS * 16
