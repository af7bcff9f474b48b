"""A checkpoint scored sample by sample: the same answers as its evaluation has."""

import base64
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from jaxdist.launch.training.pictures import encode_picture

SMALL = (
    *("model.width=4", "data.batch=32", "epochs=1", "optim.warmup_epochs=0.2"),
    *("plan.mesh.data=2", "plan.mesh.spatial_h=2"),
)


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """A run on images that was cut over four devices, and its data."""
    folder = tmp_path_factory.mktemp("images")
    data = shutil.copytree(job.data, folder / "data")
    where = f"run.dir={folder}", f"data.dir={data}"
    code, _, err = job.call("train", "digits", *where, *SMALL)
    assert code == 0, err
    return folder / "digits"


def report(job, run, *words):
    code, _, err = job.call("report", run, *words)
    # What takes longer than two seconds says so, on a busy machine.
    assert (code, err.replace("scoring held-out samples\n", "")) == (0, "")
    return json.loads((run / "samples.json").read_text())


def test_samples_are_answered_as_in_the_evaluation(job, trained):
    summary = json.loads((trained / "summary.json").read_text())
    found = report(job, trained)
    assert (found["samples"], found["held_out"]) == (360, 360)
    right = [c["samples"] for c in found["confusion"] if c["label"] == c["predicted"]]
    assert sum(right) == summary["correct"]
    assert sum(c["samples"] for c in found["confusion"]) == 360
    losses = [each["loss"] for each in found["worst"]]
    assert losses == sorted(losses, reverse=True)
    assert min(losses) >= summary["loss"]
    for each in found["worst"]:
        assert each["probability"] == pytest.approx(np.exp(-each["loss"]))
    assert 'id="samples"' in (trained / "report.html").read_text()


def test_what_is_known_of_a_checkpoint_is_not_computed_again(job, trained):
    report(job, trained)
    before = (trained / "samples.json").stat().st_mtime_ns
    report(job, trained)
    assert (trained / "samples.json").stat().st_mtime_ns == before
    assert report(job, trained, "--samples", "10")["samples"] == 10
    (trained / "samples.json").unlink()
    assert job.call("report", trained, "--samples", "0")[0] == 0
    assert not (trained / "samples.json").exists()


def test_a_report_without_its_data_says_so(job, trained):
    data = trained.parent / "data"
    data.rename(trained.parent / "elsewhere")
    data.write_text("a file is in the way")
    found = report(job, trained)
    data.unlink()
    (trained.parent / "elsewhere").rename(data)
    assert (found["samples"], found["confusion"]) == (0, [])
    assert str(data) in found["reason"]
    assert report(job, trained)["reason"] == ""


@pytest.mark.parametrize(
    ("shape", "mode", "size"),
    [
        ((16, 8, 1), "L", (8, 16)),
        ((16, 8, 3), "RGB", (8, 16)),
        ((5, 16, 8, 4), "L", (8, 16)),
        ((200, 100, 3), "RGB", (48, 96)),
    ],
)
def test_pictures_are_small_and_use_all_of_their_range(shape, mode, size):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 7.5
    picture = Image.open(io.BytesIO(base64.b64decode(encode_picture(values))))
    assert (picture.mode, picture.size) == (mode, size)
    if size != (48, 96):
        assert np.asarray(picture).min() == 0
        assert np.asarray(picture).max() >= 250


def test_a_picture_of_one_value_is_drawn():
    assert encode_picture(np.full((4, 4, 1), 3.0))
