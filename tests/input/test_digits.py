"""What is read back is what scikit-learn bundles, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_digits

from jaxdist.core.errors import BadInput
from jaxdist.input import digits
from jaxdist.input.digits import open_digits


@pytest.fixture(scope="module")
def read(digits_dir):
    train, test = open_digits(digits_dir)
    return [source.get(np.arange(len(source))) for source in (train, test)]


def samples(images, labels):
    """Count (pixels, label): the set of samples, whatever their order."""
    return Counter((i.tobytes(), int(k)) for i, k in zip(images, labels))


def test_pixels_and_labels_are_scikit_learns(read):
    bundled = load_digits()
    doubled = np.kron(bundled.images / 16, np.ones((2, 2))).astype(np.float32)
    both = [samples(split["image"], split["label"]) for split in read]
    assert both[0] + both[1] == samples(doubled, bundled.target)


def test_shapes_types_and_a_stratified_fifth(read):
    train, test = read
    assert train["image"].shape == (1437, 16, 16, 1)
    assert test["image"].shape == (360, 16, 16, 1)
    assert {train["image"].dtype, test["image"].dtype} == {np.dtype(np.float32)}
    assert {train["label"].dtype, test["label"].dtype} == {np.dtype(np.int32)}
    counts = [np.bincount(split["label"], minlength=10) for split in read]
    assert np.abs(counts[1] - (counts[0] + counts[1]) / 5).max() <= 1


def test_the_split_never_changes(digits_dir):
    train, test = open_digits(digits_dir)
    assert [train.fingerprint[:16], test.fingerprint[:16]] == [
        "63f6aa538cdbfd1f",
        "fd925538d068ff2a",
    ]


def test_preparing_says_nothing_and_is_done_once(tmp_path, capfd, monkeypatch):
    open_digits(tmp_path)
    monkeypatch.setattr(digits, "build", lambda _: pytest.fail("prepared again"))
    open_digits(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_killed_while_preparing_the_next_start_does_it_again(tmp_path):
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from jaxdist.input.digits import open_digits\n"
        f"open_digits(Path({str(tmp_path)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    while process.poll() is None and not list(tmp_path.glob(".digits-*")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "digits").exists()
    assert len(open_digits(tmp_path)[0]) == 1437


def test_a_truncated_file_is_refused(tmp_path):
    open_digits(tmp_path)
    (records,) = (tmp_path / "digits").rglob("*train*")
    os.truncate(records, 70_000)
    with pytest.raises(BadInput, match=r"digits-train.* is not what was written"):
        open_digits(tmp_path)


def test_a_builder_that_fails_says_why(tmp_path):
    (tmp_path / "digits").write_text("a file where the data set should be written")
    with pytest.raises(RuntimeError, match=r"could not be prepared:(.|\n)*Error"):
        digits.build(tmp_path)
