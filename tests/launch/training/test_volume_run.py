"""A run on volumes in files is that on the same arrays in memory, also resumed."""

import json
import shutil

import numpy as np
import pytest
from volume_files import write_npy_files, write_zarr_group

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
    runs = [tmp_path / "runs" / name for name in ("memory", "files")]

    def train(name, data):
        words = (
            f"run.name={name}",
            f"data.name={data}",
            f"run.dir={tmp_path / 'runs'}",
        )
        keep = "checkpoint.every_steps=1", "checkpoint.keep=8"
        code, _, said = job.call("train", *WORDS, *words, *keep, "epochs=4")
        return code, said

    assert train("memory", f"numpy:{tmp_path / 'v.npz'}")[0] == 0
    assert train("files", f"zarr:{tmp_path / 'scans'}")[0] == 0
    # As after a crash in step 4: what is newer was never written.
    for step in range(4, 9):
        shutil.rmtree(runs[1] / "checkpoints" / str(step))
    code, said = train("files", f"zarr:{tmp_path / 'scans'}")
    assert code == 0, said
    assert json.loads((runs[1] / "summary.json").read_text())["resumed_at"] == 3
    for kind in ("train", "test"):
        memory, files = (rows(run, kind) for run in runs)
        assert memory
        # Steps 4 to 8 are there twice.
        assert sorted(set(files)) == memory
    last = [json.loads((run / "summary.json").read_text()) for run in runs]
    assert last[0]["loss"] == last[1]["loss"]
    assert last[0]["metrics"] == last[1]["metrics"]
    # Samples that changed under a run are noticed.
    write_zarr_group(tmp_path / "other", {**found, "train": found["test"]})
    (tmp_path / "scans").rename(tmp_path / "gone")
    (tmp_path / "other").rename(tmp_path / "scans")
    shutil.rmtree(runs[1] / "checkpoints" / "8")
    code, said = train("files", f"zarr:{tmp_path / 'scans'}")
    assert code == 2
    assert "samples" in said


@pytest.mark.slow
def test_a_sample_that_cannot_be_read_ends_a_run_that_keeps_its_steps(job, tmp_path):
    found = BallsSource((8, 8, 8, 2), 2, 6).get(np.arange(6))
    both = {
        "train": {key: array[:4] for key, array in found.items()},
        "test": {key: array[4:] for key, array in found.items()},
    }
    both["train"]["image"][2, 4, 4, 4] = np.nan
    write_npy_files(tmp_path / "scans", both)
    words = (f"run.dir={tmp_path / 'runs'}", "run.name=nan", "data.check=all")
    words = (*words, f"data.name=numpy:{tmp_path / 'scans'}", "data.batch=1")
    often = ("checkpoint.every_steps=100",)
    code, _, said = job.call("train", *WORDS, *words, "epochs=2", *often)
    assert code == 2, said
    assert "case2.npy holds nan" in said
    steps = [int(p.name) for p in (tmp_path / "runs/nan/checkpoints").glob("[0-9]*")]
    lines = (tmp_path / "runs/nan/metrics.jsonl").read_text().splitlines()
    done = max((json.loads(line)["step"] for line in lines), default=0)
    assert max(steps, default=0) == done > 0
    # Mended, it goes on from there, to a held-out sample that is no better.
    held_out = tmp_path / "scans/test/image/case1.npy"
    both["test"]["image"][1, 4, 4, 4] = np.inf
    np.save(held_out, both["test"]["image"][1])
    both["train"]["image"][2, 4, 4, 4] = 0
    np.save(tmp_path / "scans/train/image/case2.npy", both["train"]["image"][2])
    code, _, said = job.call("train", *WORDS, *words, "epochs=2", *often)
    assert code == 2, said
    assert "case1.npy holds inf" in said
    done = max(int(p.name) for p in (tmp_path / "runs/nan/checkpoints").glob("[0-9]*"))
    assert done == 4  # the epoch's last, after which it was evaluated
    both["test"]["image"][1, 4, 4, 4] = 0
    np.save(held_out, both["test"]["image"][1])
    code, out, said = job.call("train", *WORDS, *words, "epochs=2", *often, "--json")
    assert code == 0, said
    assert json.loads(out)["resumed_at"] == (done or None)
