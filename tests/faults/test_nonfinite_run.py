"""Runs that meet numbers that are not finite: ended with a name, nothing saved."""

import json

import numpy as np
import pytest

SETTINGS = (
    *("data.name=numpy", "data.path=x.npz", "data.batch=16", "data.shift=0"),
    *("epochs=2", "run.name=x", "checkpoint.every_steps=2", "data.check=off"),
)
LAYOUTS = (
    ("plan.mesh.data=1", "plan.mesh.spatial_h=1"),
    ("plan.mesh.data=2", "plan.mesh.spatial_h=1", "plan.mesh.fsdp=2"),
    ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "plan.mesh.pipe=2"),
)


def save_pictures(bad=np.nan):
    draw = np.random.default_rng(0)
    y = np.arange(96) % 3
    x = draw.random((96, 16, 16, 1)) * 0.3 + y[:, None, None, None] / 3
    x = x.astype(np.float32)
    x[5, 3, 3, 0] = bad
    np.savez(
        *("x.npz",),
        **{"train_image": x[:64], "train_label": y[:64]},
        **{"test_image": x[64:], "test_label": y[64:]},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_picture_with_nan_ends_the_run_before_it_is_saved(
    job, tmp_path, monkeypatch, layout
):
    """XLA's relu on CPUs makes 0 of NaN: the loss is finite, the gradient is not."""
    monkeypatch.chdir(tmp_path)
    save_pictures()
    code, out, err = job.call("train", "digits", *SETTINGS, *layout)
    assert code == 1, out + err
    # The gradient is named, not the state that would follow from it.
    assert "is not finite: its loss is nan" in err
    assert "first leaf params/" in err
    for folder in tmp_path.glob("runs/x/checkpoints/[0-9]*"):
        # What was saved before the picture was met is whole.
        assert job.call("ckpt", "verify", "x")[0] == 0, folder
    for line in (tmp_path / "runs/x/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_every_batch_is_looked_at_where_asked(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_pictures(np.inf)
    words = [w for w in SETTINGS if "data.check" not in w]
    code, out, err = job.call("train", "digits", *words, *LAYOUTS[0], "data.check=all")
    assert code == 2, out + err
    assert "sample 5 is not finite" in err
