"""A run whose disk is lost resumes from its store, and ends as if nothing had been."""

import json
import shutil

import pytest

pytestmark = pytest.mark.timeout(300)
RUN = (
    *("train", "digits", "model.width=4", "epochs=0.3", "plan.mesh.data=2"),
    *("plan.mesh.spatial_h=1", "run.name=r", "checkpoint.every_steps=2"),
)


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """Return the folder of runs, the store, the command, and what it printed."""
    home = tmp_path_factory.mktemp("remote")
    command = (
        *(*RUN, f"run.dir={home / 'runs'}", f"data.dir={job.data}"),
        f"checkpoint.store=file://{home}/store",
    )
    code, out, err = job.call(*command)
    assert code == 0, err
    return home, command, out


def digest(job, run):
    code, out, err = job.call("ckpt", "hash", str(run), "--json")
    assert code == 0, err
    found = json.loads(out)
    return found["step"], found["params_sha256"]


def test_a_run_whose_disk_is_lost_ends_alike(job, trained):
    home, command, _ = trained
    expected = digest(job, home / "runs" / "r")
    lists = (home / "store" / "r" / "checkpoints").glob("*.json")
    steps = sorted(int(path.stem) for path in lists)
    assert steps[-1] == expected[0]
    assert len(steps) == 3
    # As if the machine had gone before the last copy was whole.
    (home / "store" / "r" / "checkpoints" / f"{steps[-1]}.json").unlink()
    shutil.rmtree(home / "runs")
    code, out, err = job.call(*command)
    assert code == 0, err
    assert f"resumed at step {steps[-2]} " in out
    assert digest(job, home / "runs" / "r") == expected


def test_a_copy_is_pulled_and_scored(job, trained, tmp_path, monkeypatch):
    home, _, _ = trained
    address = f"file://{home}/store/r"
    monkeypatch.chdir(tmp_path)
    code, out, err = job.call("ckpt", "pull", address)
    assert code == 0, err
    assert "1 checkpoint" in out
    assert "verified" in out
    expected = digest(job, home / "runs" / "r")
    assert digest(job, "r") == expected
    code, out, err = job.call("eval", "r")
    assert code == 0, err
    assert f"checkpoint {expected[0]} " in out
    # What is there is not touched.
    code, _, err = job.call("ckpt", "pull", address)
    assert code == 2
    assert "runs/r is there already" in err


def test_a_damaged_copy_is_told_and_one_that_fails_leaves_nothing(
    job, trained, tmp_path, monkeypatch
):
    home, _, _ = trained
    store = tmp_path / "store" / "s"
    shutil.copytree(home / "store" / "r", store)
    monkeypatch.chdir(tmp_path)
    *older, newest = sorted(
        (path for path in (store / "checkpoints").glob("[0-9]*.json")),
        key=lambda path: int(path.stem),
    )
    newest.write_text("{}")
    code, out, err = job.call("ckpt", "pull", f"file://{store}", "--json")
    assert code == 0, err
    (found,) = json.loads(out)["checkpoints"]
    assert found["step"] == int(older[-1].stem)
    assert f"copy of checkpoint {newest.stem} skipped" in err
    # Again, with no copy that can be used.
    for path in older:
        path.write_text("{}")
    shutil.rmtree(tmp_path / "runs")
    code, _, err = job.call("ckpt", "pull", f"file://{store}")
    assert code == 2
    assert "can be used" in err
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_is_mistyped_makes_nothing(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for store, said in (
        ("http://bucket/runs", "cannot hold copies"),
        (f"file://{tmp_path}/file", "cannot be written"),
    ):
        code, _, err = job.call(
            *RUN, f"data.dir={job.data}", f"checkpoint.store={store}"
        )
        assert code == 2
        assert said in err
    code, _, err = job.call("ckpt", "pull", f"file://{tmp_path}/nothing")
    assert code == 2
    assert "has no checkpoint" in err
    for address in ("runs/r", ""):
        code, _, err = job.call("ckpt", "pull", address)
        assert code == 2
        assert "is no address of a store" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
