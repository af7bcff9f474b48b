"""A run on volumes in files is that on the same arrays in memory, also resumed."""

import json

import numpy as np
import pytest
from volume_files import write_zarr_group

from jaxdist.input.balls import BallsSource

WORDS = (
    *("unet3d", "model.size=tiny", "model.classes=2", "model.channels=2"),
    *("data.batch=2", "plan.mesh.spatial_d=2", "plan.mesh.spatial_h=1"),
)


def rows(run, kind):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(row["step"], row["loss"]) for row in found if row["kind"] == kind]


@pytest.mark.slow
def test_a_run_on_zarr_resumes_and_is_that_of_its_arrays(job, tmp_path):
    found = {
        split: dict(BallsSource((8, 8, 8, 2), 2, n, first).get(np.arange(n)))
        for split, n, first in (("train", 4, 0), ("test", 2, 4))
    }
    arrays = {f"{s}_{k}": x for s, both in found.items() for k, x in both.items()}
    np.savez(tmp_path / "v.npz", **arrays)
    write_zarr_group(tmp_path / "scans", found)
    home = f"run.dir={tmp_path / 'runs'}"
    for name, data, epochs in (
        ("memory", f"numpy:{tmp_path / 'v.npz'}", 4),
        ("files", f"zarr:{tmp_path / 'scans'}", 2),
        ("files", f"zarr:{tmp_path / 'scans'}", 4),
    ):
        words = (f"run.name={name}", f"data.name={data}", f"epochs={epochs}", home)
        code, _, said = job.call("train", *WORDS, *words, "checkpoint.every_steps=1")
        assert code == 0, said
    runs = [tmp_path / "runs" / name for name in ("memory", "files")]
    for kind in ("train", "test"):
        memory, files = (rows(run, kind) for run in runs)
        assert memory
        assert (
            memory == files[: len(memory)]
            or dict(memory).items() <= dict(files).items()
        )
    last = [json.loads((run / "summary.json").read_text()) for run in runs]
    assert last[0]["loss"] == last[1]["loss"]
    assert last[0]["metrics"] == last[1]["metrics"]
    # Samples that changed under a run are noticed.
    write_zarr_group(tmp_path / "other", {**found, "train": found["test"]})
    (tmp_path / "scans").rename(tmp_path / "gone")
    (tmp_path / "other").rename(tmp_path / "scans")
    words = ("run.name=files", f"data.name=zarr:{tmp_path / 'scans'}", home)
    code, _, said = job.call("train", *WORDS, *words, "epochs=6")
    assert code == 2
    assert "samples" in said
