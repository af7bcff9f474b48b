"""Bad input, end to end: exit code 2, a message that teaches, nothing written or lost."""

import contextlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from jaxdist.train.checkpoint import orbax_store

pytestmark = pytest.mark.timeout(300)

SMALL = (
    "model.width=4",
    "data.batch=32",
    "epochs=0.2",
    "checkpoint.every_steps=4",
    "plan.mesh.data=2",
    "plan.mesh.spatial_h=1",
)
"""Nine steps on two devices."""


def tree(*folders):
    """Everything below some folders, byte for byte."""
    paths = (path for folder in folders for path in folder.rglob("*"))
    return {path: path.is_file() and path.read_bytes() for path in paths}


def words_of(job, folder, *words, experiment="digits"):
    where = (f"run.dir={folder.parent}", f"run.name={folder.name}")
    return ("train", experiment, *where, f"data.dir={job.data}", *words)


def refused(job, folder, *words, experiment="digits", run=None, **env):
    """Give a command that must be refused; return what it says."""
    command = words_of(job, folder, *words, experiment=experiment)
    code, out, err = (run or job.call)(*command, **env)
    assert (code, out) == (2, ""), err
    # What a training is about to do is said first.
    said = re.search(r"^error: ", err, re.MULTILINE)
    assert said is not None, err
    assert "error" not in err[: said.start()]
    err = err[said.start() :]
    assert re.match(r"error: .+\n(  (rule  |values|remedy)   .+\n( {11}.+\n)*)+$", err)
    return err


def assert_says(said, *parts):
    for part in parts:
        assert part in said


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "digits"
    code, _, err = job.run(*words_of(job, folder, *SMALL))
    assert code == 0, err
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A finished run, to be spoilt."""
    return shutil.copytree(trained, tmp_path / "runs" / "digits")


MISTYPED = {
    "key": (["optm.lr=0.1"], ["no key optm.lr", "did you mean optim.lr?"]),
    "model": (["model.name=resnet9"], ["no model named resnet9", "model.name=resnet8"]),
    "choice": (["model.norm=globl"], ["global or replica", "model.norm=global"]),
    "type": (["data.batch=many"], ["is a whole number", "data.batch = many"]),
    "precision": (["precision=float16"], ["float32, bfloat16 or float64"]),
    "width": (["model.width=0"], ["at least 1", "model.width=1"]),
    "dropout": (["model.dropout=1.5"], ["at least 0 and below 1"]),
    "rate": (["optim.lr=-1"], ["optim.lr = -1.0", "optim.lr=0"]),
    "batch": (
        ["data.batch=30"],
        ["multiple of plan.mesh.data", "plan.mesh.data = 4", "data.batch=28 or"],
    ),
}


def test_an_experiment_that_does_not_exist(job, tmp_path):
    folder = tmp_path / "runs" / "digits"
    said = refused(job, folder, experiment="digts", run=job.run)
    assert_says(said, "no experiment named digts", "did you mean digits?")
    assert not tree(tmp_path)


@pytest.mark.parametrize("case", MISTYPED)
def test_what_is_mistyped_is_named_with_what_was_meant(job, tmp_path, case):
    words, parts = MISTYPED[case]
    assert_says(refused(job, tmp_path / "runs" / "digits", *words), *parts)
    assert not tree(tmp_path)


def test_a_mesh_larger_than_the_devices(job, tmp_path):
    words, four = ("plan.mesh.data=8", "data.batch=64"), {"JAX_NUM_CPU_DEVICES": "4"}
    folder = tmp_path / "runs" / "digits"
    said = refused(job, folder, *words, run=job.run, **four)
    assert_says(said, "data 8 x spatial_h 2 needs 16, here are 4 (cpu)")
    assert_says(said, "plan.mesh.data=4 plan.mesh.spatial_h=1")
    assert not tree(tmp_path)


def test_a_spatial_axis_too_fine_for_the_image(job, tmp_path):
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=16")
    said = refused(job, tmp_path / "runs" / "digits", *words)
    assert_says(
        said, "spatial_h is too fine for the image", "16 rows fill 4 blocks of 4"
    )
    assert_says(said, "plan.mesh.spatial_h=4")
    assert not tree(tmp_path)


def test_a_network_for_other_images(job, tmp_path):
    said = refused(job, tmp_path / "runs" / "digits", "model.channels=3")
    assert_says(said, "samples of digits are [16, 16, 1]", "model.channels=1")
    assert not tree(tmp_path)


def test_a_data_set_that_does_not_exist(job, tmp_path):
    said = refused(job, tmp_path / "runs" / "digits", "data.name=digit")
    assert_says(said, "no data set named digit", "data.name=digits?")
    assert not tree(tmp_path)


def empty(data):
    for path in data.rglob("*"):
        path.unlink() if path.is_file() else None


def truncate(data):
    (cut,) = data.rglob("*train*array_record*")
    cut.write_bytes(cut.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("spoil", "part"),
    [(empty, "holds 0 files"), (truncate, "(1,000 B) is not what was written")],
)
def test_a_data_folder_that_is_empty_or_truncated(job, tmp_path, spoil, part):
    data = shutil.copytree(job.data, tmp_path / "data")
    spoil(data)
    before = tree(tmp_path)
    said = refused(job, tmp_path / "runs" / "digits", f"data.dir={data}")
    assert_says(said, "the data set digits is damaged", part, f"rm -r {data}/digits")
    assert tree(tmp_path) == before


def test_a_file_where_the_runs_should_be(job, tmp_path):
    (tmp_path / "runs").write_text("mine")
    said = refused(job, tmp_path / "runs" / "digits")
    assert_says(said, f"{tmp_path}/runs is a file", "run.dir=FOLDER")
    assert (tmp_path / "runs").read_text() == "mine"


def test_a_run_of_another_network_is_not_gone_on_with(job, run):
    before = tree(run)
    said = refused(job, run, *SMALL, "model.width=8")
    assert_says(said, "model.width 4, now 8", "model.width=4", "run.name=digits-2")
    assert tree(run) == before


def assert_nothing_lost(before, folder):
    """The spans alone may tell of the attempt that was refused."""
    after = tree(folder)
    assert {path for path in before if after.get(path) != before[path]} <= {
        folder / "spans.jsonl"
    }


def test_checkpoints_of_another_network(job, run):
    (run / "config.lock.json").unlink()
    before = tree(run)
    said = refused(job, run, *SMALL, "model.width=8")
    assert_says(said, "is of another model", " in the checkpoint, float32 ")
    assert_nothing_lost(before, run)
    assert not (run / "config.lock.json").exists()


def test_checkpoints_that_are_all_damaged(job, run):
    for path in (run / "checkpoints").rglob("d/*"):
        if path.is_file():
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
    before = tree(run)
    said = refused(job, run, *SMALL, "epochs=0.4", "--change")
    assert_says(said, "no checkpoint in", "can be used", "4: ", "8: ", "9: ")
    assert_says(said, "run.name=another-name starts from the beginning")
    assert_nothing_lost(before, run)


def test_two_runs_at_once_in_one_folder(job, tmp_path):
    folder = tmp_path / "runs" / "digits"
    first = job.start(*words_of(job, folder, *SMALL))
    while not job.lines(folder / "spans.jsonl"):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    before = tree(tmp_path)
    said = refused(job, folder, *SMALL)
    assert_says(said, "another process is at work", f"process {first.pid} on ")
    assert_says(said, "run.name=digits-2")
    assert tree(tmp_path) == before
    first.send_signal(signal.SIGCONT)
    _, err = first.communicate()
    assert first.returncode == 0, err


@contextlib.contextmanager
def disk(folder, options):
    folder.mkdir()
    mount(f"size=100m,{options}", folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def mount(options, folder):
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    subprocess.run(words, check=True)


@pytest.mark.system
def test_a_disk_that_is_mounted_read_only(job, tmp_path):
    with disk(tmp_path / "runs", "ro") as runs:
        said = refused(job, runs / "digits")
    assert_says(said, "on a disk that is mounted read-only", "run.dir=FOLDER")


FULL = re.compile(
    r"error: (checkpoint \d+ does not fit on the disk|the disk is full)\n(?s:.*)"
    r"  remedy   make room"
)
"""A checkpoint finds the disk full, or a line of metrics does that is written beside it."""


@pytest.mark.system
def test_a_disk_that_fills_up_costs_one_checkpoint(job, trained, tmp_path):
    words = (*SMALL, "checkpoint.every_steps=1", "checkpoint.keep=100")
    with disk(tmp_path / "runs", "size=1200k") as runs:
        folder = runs / "digits"
        code, out, err = job.run(*words_of(job, folder, *words))
        assert code == 1, err
        assert FULL.search(err), err
        assert "Traceback" not in err
        saved = folder / "checkpoints"
        names = [path.name for path in saved.iterdir()]
        good = sorted(int(name) for name in names if name.isdigit())
        assert good == list(range(1, good[-1] + 1))
        assert job.run("ckpt", "verify", folder)[0] == 0
        mount("remount,size=100m", runs)
        code, out, err = job.run(*words_of(job, folder, *words))
        assert code == 0, err
        assert not list(saved.glob(f"*{orbax_store.INCOMPLETE_SUFFIX}*"))
        assert f"resumed at step {good[-1]} " in " ".join(out.split())
        steps = [row["step"] for row in job.lines(folder / "metrics.jsonl")]
        assert steps == [*range(1, 10), 9]
        assert job.hash(folder) == job.hash(trained)
