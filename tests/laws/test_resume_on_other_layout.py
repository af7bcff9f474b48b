"""Law 7 on other layouts: the same samples, and the same numbers in float64."""

import itertools
import json
import shutil
import signal

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.train.checkpoint import reader

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

WORDS = (
    "model.width=4",
    "model.dropout=0.2",
    "data.shift=1",
    "data.batch=128",
    "epochs=2",
    "precision=float64",
    "checkpoint.every_steps=4",
    "checkpoint.keep=9",
)
STEPS, DIES_AT = 23, 11
EIGHT = ("plan.mesh.data=4", "plan.mesh.spatial_h=2")
ELSEWHERE = {
    "4 devices": ("plan.mesh.data=4", "plan.mesh.spatial_h=1"),
    "2 devices": ("plan.mesh.data=1", "plan.mesh.spatial_h=2"),
}

TRACED = """
import json, os, signal, sys, time
from pathlib import Path
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.training.job.request import JobRequest
from jaxdist.launch.training.job.setup import settle

trace, dies_at, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
request = JobRequest(experiment="digits", overrides=words, accepts_changes=True)
job = settle(request, process_group(), for_training=True)

import numpy as np
from jaxdist.launch.training.console_reporter import ConsoleReporter
from jaxdist.launch.training.train import train

def traced(batches, start):
    # What the step is given, gathered from the devices that it lies on.
    with trace.open("a", buffering=1) as file:
        for step, batch in enumerate(batches, start + 1):
            if step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            ids = np.asarray(batch["id"]).tolist()
            file.write(json.dumps({"step": step, "ids": ids}) + "\\n")
            yield batch

with ConsoleReporter(quiet=True) as terminal:
    train(job, terminal, start_time=time.time(), wrap_batches=traced)
"""


class Attempt:
    """A process that trained in a folder, with the samples of each of its steps."""

    def __init__(self, job, folder, layout, dies_at=0):
        where = (f"run.dir={folder.parent}", f"data.dir={job.data}", *layout)
        trace = folder.parent / "trace.jsonl"
        child = job.python("-c", TRACED, trace, dies_at, *where, *WORDS)
        _, err = child.communicate()
        assert child.returncode == (-signal.SIGKILL if dies_at else 0), err
        rows = job.lines(trace)
        self.folder, self.ids = folder, [(row["step"], row["ids"]) for row in rows]

    @property
    def losses(self):
        text = (self.folder / "metrics.jsonl").read_text()
        rows = map(json.loads, text.splitlines())
        return np.array([r["loss"] for r in rows if r["kind"] == "train"])

    @property
    def leaves(self):
        saved = self.folder / "checkpoints" / str(STEPS)
        return dict(reader.read_leaves(saved, reader.read_manifest(saved)))


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    return Attempt(job, tmp_path_factory.mktemp("whole") / "digits", EIGHT)


@pytest.fixture(scope="module")
def killed(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "digits"
    return Attempt(job, folder, EIGHT, dies_at=DIES_AT)


@pytest.fixture(scope="module", params=ELSEWHERE)
def resumed(job, killed, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed") / "digits"
    shutil.copytree(killed.folder, folder)
    return Attempt(job, folder, ELSEWHERE[request.param])


def test_the_same_samples(whole, killed, resumed):
    order = GlobalShuffleOrder(num_samples=1437, batch=128)
    assert whole.ids == [(s + 1, order.ids(s).tolist()) for s in range(STEPS)]
    assert killed.ids == whole.ids[: DIES_AT - 1]
    start = resumed.ids[0][0] - 1
    assert start in reader.list_steps(killed.folder / "checkpoints")
    assert resumed.ids == whole.ids[start:]


def test_every_sample_once_an_epoch(killed, resumed):
    start = resumed.ids[0][0] - 1
    fed = itertools.chain(*(ids for _, ids in killed.ids[:start] + resumed.ids))
    for _ in range(2):
        assert sorted(itertools.islice(fed, 1437)) == list(range(1437))


def test_the_same_loss_curve(whole, resumed):
    assert len(whole.losses) == len(resumed.losses) == STEPS
    np.testing.assert_allclose(resumed.losses, whole.losses, rtol=1e-9, atol=0)


def test_the_same_state_at_the_end(whole, resumed):
    got, want = resumed.leaves, whole.leaves
    assert set(got) == set(want)
    for name, leaf in want.items():
        assert leaf.dtype in (jnp.float64, jnp.int32), name
        assert np.abs(got[name] - leaf).max() <= 1e-9 * np.abs(leaf).max(), name
