"""Law 1 for a whole training: vessels on one device and on eight have one curve."""

import json

import numpy as np
import pytest

pytestmark = [pytest.mark.laws, pytest.mark.timeout(1200)]

SMALL = (
    *("train", "vessels", "precision=float64", "data.augment=flip,rotate90,noise:0.05"),
    *("data.size=8", "model.width=2", "data.samples=8", "epochs=1", "--json"),
)
ONE = ("plan.mesh.data=1", "plan.mesh.spatial_d=1", "plan.mesh.spatial_h=1")


def curve(job, folder, name, *words):
    """Losses of all steps, and losses and scores of all evaluations."""
    where = f"run.dir={folder}", f"run.name={name}"
    code, _, err = job.call(*SMALL, *words, *where)
    assert code == 0, err
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    keys = "loss", "mean_dice", "mean_iou", "accuracy"
    rows = [json.loads(line) for line in lines]
    return np.array([[row.get(key, 0.0) for key in keys] for row in rows])


def assert_the_same(job, folder, *words):
    one = curve(job, folder, "one", *ONE, *words)
    eight = curve(job, folder, "eight", *words)
    assert one.shape == eight.shape
    assert len(one) > 4
    np.testing.assert_allclose(eight, one, rtol=1e-9)


@pytest.mark.slow
def test_few_steps(job, tmp_path):
    assert_the_same(job, tmp_path)


@pytest.mark.slow
def test_steps_of_four_epochs_on_larger_volumes_evaluated_by_windows(job, tmp_path):
    words = "data.size=24", "data.samples=16", "epochs=4"
    assert_the_same(job, tmp_path, *words, "data.augment=crop:16,flip,noise:0.05")
