"""Whole commands in folders that hold files of others, or that a run is writing."""

import json
import subprocess
from contextlib import suppress

import pytest

from jaxdist.train.load import load

DRAW = ("pipeline", "draw", "--stages", "2", "--microbatches", "4")


def test_readers_end_no_save_of_a_run(job, tmp_path):
    """`eval` and `load` deleted what a live run was saving, which then failed."""
    run = tmp_path / "live"
    words = ["digits", "data.batch=96", "epochs=0.6", "checkpoint.every_steps=1"]
    words += ["model.width=4", "optim.accumulate=1"]
    words += ["plan.mesh.data=1", "plan.mesh.spatial_h=1", "run.name=live"]
    words += [f"run.dir={tmp_path}", f"data.dir={job.data}"]
    child = job.start("train", *words)
    # In turn, as soon as there is a checkpoint, until the run is done.
    readers = [
        lambda: load(run),
        lambda: job.call("ckpt", "verify", run)[0] and pytest.fail("damaged"),
        lambda: job.call("report", run)[0] and pytest.fail("no report"),
    ]
    reads = 0
    while child.poll() is None:
        if any(path.name.isdecimal() for path in (run / "checkpoints").glob("*")):
            readers[reads % len(readers)]()
            reads += 1
        else:
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.1)
    out, err = child.communicate()
    assert child.returncode == 0, out + err
    assert reads
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(left) == 3
    assert all(name.isdecimal() for name in left)


def test_a_drawing_overwrites_nothing_unless_told(job, tmp_path):
    (tmp_path / "target").write_text("not ours")
    path = tmp_path / "drawing.svg"
    path.symlink_to(tmp_path / "target")
    for planted in (path, tmp_path / "target"):
        code, out, err = job.call(*DRAW, "-o", planted)
        assert (code, out) == (2, "")
        assert "is there already" in err
        assert "--force overwrites it" in err
        assert (tmp_path / "target").read_text() == "not ours"
    code, _, err = job.call(*DRAW, "-o", path, "--force")
    assert (code, err) == (0, "")
    assert (tmp_path / "target").read_text() == "not ours"
    assert path.read_text().startswith("<")
    assert not path.is_symlink()
    code, _, err = job.call(*DRAW, "-o", tmp_path)
    assert (code, "is a folder" in err) == (2, True)


def test_a_report_does_not_follow_planted_links(job, tmp_path):
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    target.write_text("not ours")
    words = ["digits", "epochs=0.1", "model.width=4", "run.name=run"]
    words += ["plan.mesh.data=1", "plan.mesh.spatial_h=1", f"run.dir={tmp_path}"]
    code, _, err = job.call("train", *words, f"data.dir={job.data}", "--json")
    assert code == 0, err
    (run / "report.html").unlink(missing_ok=True)
    for name in ("report.html", ".report.html.part", "report.html.part"):
        (run / name).symlink_to(target)
    code, _, err = job.call("report", run)
    assert (code, err) == (0, "")
    assert target.read_text() == "not ours"
    assert not (run / "report.html").is_symlink()
    assert json.loads((run / "summary.json").read_text())["status"] == "done"
