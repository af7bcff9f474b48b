"""Pictures of clothing, or others like them, are trained on from a folder."""

import json
import struct

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(300)

FILES = (
    "train-images-idx3",
    "train-labels-idx1",
    "t10k-images-idx3",
    "t10k-labels-idx1",
)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "clothes").mkdir()
    for name, count in zip(FILES, (32, 32, 8, 8), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        most = 256 if "images" in name else 10
        numbers = rng.integers(0, most, shape).astype(np.uint8)
        (tmp_path / "clothes" / f"{name}-ubyte").write_bytes(head + numbers.tobytes())
    return tmp_path / "clothes"


def test_a_folder_of_idx_files_is_trained_on_with_rows_split(job, tmp_path, folder):
    words = (f"data.path={folder}", f"run.dir={tmp_path}", "data.batch=16", "epochs=1")
    rows = ("plan.mesh.data=2", "plan.mesh.spatial_h=2", "model.width=4")
    code, out, err = job.call("train", "fashion_mnist", *words, *rows, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["steps"], summary["held_out"], summary["answers"]) == (2, 8, 8)
    assert np.isfinite(summary["loss"])


def test_without_a_folder_it_says_what_to_type(job, tmp_path):
    code, _, err = job.call("train", "fashion_mnist", f"run.dir={tmp_path}")
    assert code == 2
    assert "data.path is empty" in err
    assert "data.path=FOLDER" in err
    assert not list(tmp_path.iterdir())


def test_a_network_with_too_few_outputs_for_the_labels_is_refused(
    job, tmp_path, folder
):
    words = (f"data.path={folder}", f"run.dir={tmp_path}", "model.classes=9")
    code, _, err = job.call("train", "fashion_mnist", *words)
    assert code == 2
    assert "model.classes=10" in err
