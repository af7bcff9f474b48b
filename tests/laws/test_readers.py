"""How samples are read changes no number of a run: law 6, one process."""

import json

import pytest

pytestmark = [pytest.mark.laws, pytest.mark.timeout(300)]

SMALL = (
    *("model.width=4", "data.batch=32", "epochs=0.2"),
    *("plan.mesh.data=2", "plan.mesh.spatial_h=1"),
    *("plan.shuffle.exchange_fraction=0.25", "plan.shuffle.partitions=8"),
)


def losses(job, folder, *words):
    where = f"run.dir={folder}", f"run.name=run-{len(words)}", f"data.dir={job.data}"
    code, _, err = job.run("train", "digits", *where, *SMALL, *words)
    assert code == 0, err
    lines = job.lines(folder / f"run-{len(words)}" / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_workers_and_stores_change_no_loss(job, tmp_path):
    plain = losses(job, tmp_path)
    assert len(plain) == 9
    assert losses(job, tmp_path, "data.workers=2") == plain
    disk = f"data.cache_dir={tmp_path / 'kept'}"
    assert losses(job, tmp_path, "data.cache=disk", disk) == plain
    said = json.loads((tmp_path / "run-2" / "summary.json").read_text())["exchange"]
    assert said["share"] == said["filled"] == 1437
    assert list((tmp_path / "kept").rglob("notes.bin"))
