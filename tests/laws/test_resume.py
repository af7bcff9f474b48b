"""Law 7: interrupted and resumed, a run is the run that was never interrupted."""

import random
import shutil
import signal
import time
from functools import partial

import pytest

from jaxdist.train.checkpoint import orbax_store, reader

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

STEPS = 60
WORDS = (
    "model.width=4",
    "model.dropout=0.2",
    "data.batch=32",
    "epochs=1.33",
    "checkpoint.every_steps=6",
)


def train(job, folder):
    """Start a run, or go on with it; small, with dropout and augmentation on."""
    where = (f"run.dir={folder.parent}", f"run.name={folder.name}")
    return job.start("train", "digits", *where, f"data.dir={job.data}", *WORDS)


def finish(job, folder):
    child = train(job, folder)
    out, err = child.communicate()
    assert child.returncode == 0, err
    # Lines wrap at the terminal's width, wherever a long temporary path puts that.
    return " ".join(out.split())


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    """The run that nothing interrupts; it compiles what the others find compiled."""
    folder = tmp_path_factory.mktemp("whole") / "digits"
    finish(job, folder)
    return folder


def told(job, folder):
    """Everything in `metrics.jsonl` but times and memory, in the order of the lines."""
    rows = job.lines(folder / "metrics.jsonl")
    measured = ("step_s", "time", "host_memory_bytes", "device_memory_bytes")
    return [{key: row[key] for key in row if key not in measured} for row in rows]


def assert_the_same_run(job, folder, whole):
    metrics = told(job, folder)
    steps = [row["step"] for row in metrics if row["kind"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    assert metrics == told(job, whole)
    assert job.hash(folder) == job.hash(whole)


class Attempt:
    """One process at work in a run folder, watched through the files it writes."""

    def __init__(self, job, folder):
        self.job, self.folder = job, folder
        self.before = len(job.lines(folder / "spans.jsonl"))
        self.child = train(job, folder)

    def spans(self, name):
        rows = self.job.lines(self.folder / "spans.jsonl")[self.before :]
        return [row for row in rows if row["name"] == name]

    def compiling(self, step):
        """Whether it compiles; at the very start, so no step is waited for."""
        found = self.spans("compile")
        return bool(found) and bool(found[-1].get("begin"))

    def past(self, step):
        """Whether it trains, and has done this step."""
        # Only then are the lines gone of the steps that it does again.
        metrics = told(self.job, self.folder) if self.spans("compute") else []
        return bool(metrics) and metrics[-1]["step"] >= step

    def saving(self, step):
        """Whether a checkpoint from this step on has begun and is not committed."""
        saves = self.folder / "checkpoints"
        begun = [
            path.name.split(".")[0]
            for path in saves.glob(f"*{orbax_store.INCOMPLETE_SUFFIX}")
        ]
        return any(int(s) >= step and not (saves / s).exists() for s in begun)

    def kill(self, inside, step, wait_s=0.0):
        """Freeze it when `inside(step)` holds, make sure that it does, and kill it."""
        while self.child.poll() is None:
            if inside(step):
                time.sleep(wait_s)
                self.child.send_signal(signal.SIGSTOP)
                time.sleep(0.05)  # until every thread has stopped
                if inside(step):
                    self.job.stop(self.child)
                    assert inside(step)
                    return
                self.child.send_signal(signal.SIGCONT)
            time.sleep(0.002)
        raise AssertionError(f"it ended by itself: {self.child.communicate()[1]}")


MOMENTS = (Attempt.compiling, Attempt.saving, Attempt.past, Attempt.past, Attempt.past)


def test_killed_at_five_random_moments(job, whole, tmp_path):
    folder = tmp_path / "digits"
    draw = random.Random(7)
    moments = draw.sample(MOMENTS, len(MOMENTS))
    for part, moment in enumerate(moments):
        step = draw.randrange(part * STEPS // 5, (part + 1) * STEPS // 5)
        attempt = Attempt(job, folder)
        attempt.kill(partial(moment, attempt), step, draw.random() * 0.05)
    finish(job, folder)
    assert_the_same_run(job, folder, whole)


def test_stopped_from_the_keyboard(job, whole, tmp_path):
    folder = tmp_path / "digits"
    attempt = Attempt(job, folder)
    while not attempt.past(20):
        time.sleep(0.01)
    attempt.child.send_signal(signal.SIGINT)
    out, err = attempt.child.communicate()
    assert attempt.child.returncode == 75
    assert err.splitlines()[-1] == "saving this step; Ctrl-C again ends at once"
    assert f"jaxdist resume {folder}" in out
    assert "Traceback" not in err
    assert not list((folder / "checkpoints").glob(f"*{orbax_store.INCOMPLETE_SUFFIX}*"))
    finish(job, folder)
    assert_the_same_run(job, folder, whole)


def test_a_damaged_newest_checkpoint_is_skipped(job, whole, tmp_path):
    folder = tmp_path / "digits"
    shutil.copytree(whole, folder)
    # As a run that was killed: one that has ended is not done again.
    (folder / "summary.json").unlink()
    *_, older, newest = reader.list_steps(folder / "checkpoints")
    damage(folder / "checkpoints" / str(newest))
    out = finish(job, folder)
    assert f"warn: checkpoint {newest} skipped: " in out
    assert f"resumed at step {older} (newest verified)" in out
    assert_the_same_run(job, folder, whole)


def test_a_finished_run_is_not_done_again(job, whole, tmp_path):
    folder = tmp_path / "digits"
    shutil.copytree(whole, folder)
    out = finish(job, folder)
    assert out.startswith(f"finished run digits at step {STEPS}: test accuracy")
    assert_the_same_run(job, folder, whole)
    # Nor where its last step was saved and its summary was not written any more.
    (folder / "summary.json").unlink()
    out = finish(job, folder)
    assert f"resumed at step {STEPS} (newest verified)" in out
    assert_the_same_run(job, folder, whole)


def damage(checkpoint):
    """Flip a byte in the middle of every file of numbers."""
    files = [path for path in checkpoint.rglob("d/*") if path.is_file()]
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
