"""Laws 6 and 7 over processes: the same samples, the same numbers, and to the bit."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.train.checkpoint import reader

pytestmark = [pytest.mark.laws, pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = Path(__file__).with_name("process_worker.py")
WORDS = (
    "model.width=4",
    "model.dropout=0.2",
    "data.shift=1",
    "data.batch=128",
    "epochs=0.7",
    "precision=float64",
    "checkpoint.every_steps=2",
    "checkpoint.keep=9",
)
STEPS, DIES_AT = 8, 6


class Attempt:
    """Processes that trained in a folder, with the samples of each of their steps."""

    def __init__(self, job, folder, processes, dies_at=0):
        trace = folder.parent / "trace"
        words = f"run.dir={folder.parent}", f"data.dir={job.data}", *WORDS
        how = "-n", processes, "--devices-per-process", 8 // processes, "--"
        run = sys.executable, WORKER, trace, dies_at, *words
        code, _, err = job.run("launch", "local", *how, *run)
        assert code == (137 if dies_at else 0), err
        self.folder, self.code, self.err = folder, code, err
        self.rows = [
            {row["step"]: row["held"] for row in job.lines(Path(f"{trace}-{rank}"))}
            for rank in range(processes)
        ]

    @property
    def ids(self):
        """The ids of each step in the order of the batch, and that no two ranks differ."""
        found = {}
        for step in self.rows[0]:
            held = [
                (int(at), ids) for row in self.rows for at, ids in row[step].items()
            ]
            pieces = dict(held)
            assert all(pieces[at] == ids for at, ids in held)
            found[step] = [i for at in sorted(pieces) for i in pieces[at]]
        return found

    @property
    def losses(self):
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return np.array([r["loss"] for r in rows if r["kind"] == "train"])

    @property
    def leaves(self):
        saved = self.folder / "checkpoints" / str(STEPS)
        return dict(reader.read_leaves(saved, reader.read_manifest(saved)))


@pytest.fixture(scope="module", params=[2, 4])
def several(job, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"{request.param}_processes") / "digits"
    return Attempt(job, folder, request.param)


@pytest.fixture(scope="module")
def one(job, tmp_path_factory):
    return Attempt(job, tmp_path_factory.mktemp("one_process") / "digits", 1)


@pytest.fixture(scope="module")
def killed(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "digits"
    return Attempt(job, folder, 2, dies_at=DIES_AT)


def resumed(job, killed, processes, tmp_path):
    shutil.copytree(killed.folder, tmp_path / "digits")
    return Attempt(job, tmp_path / "digits", processes)


def assert_the_same_to_rounding(got, want):
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-9, atol=0)
    leaves = want.leaves
    assert set(got.leaves) == set(leaves)
    for name, leaf in got.leaves.items():
        most = 1e-9 * np.abs(leaves[name]).max()
        assert np.abs(leaf - leaves[name]).max() <= most, name


def test_the_same_samples_and_each_process_feeds_its_own(one, several):
    order = GlobalShuffleOrder(num_samples=1437, batch=128)
    want = {s + 1: order.ids(s).tolist() for s in range(STEPS)}
    assert one.ids == several.ids == want
    rows = [sorted(map(int, each[1])) for each in several.rows]
    assert len({tuple(each) for each in rows}) == len(rows)


def test_the_same_losses_and_parameters(one, several):
    assert len(one.losses) == STEPS
    assert_the_same_to_rounding(several, one)


def test_a_killed_process_ends_all_and_is_named(killed):
    assert "process 1 of 2 was ended by SIGKILL" in killed.err
    assert len(killed.losses) < STEPS


def test_killed_and_resumed_is_uninterrupted_to_the_bit(job, killed, tmp_path):
    whole = Attempt(job, tmp_path / "whole" / "digits", 2)
    again = resumed(job, killed, 2, tmp_path)
    assert job.hash(again.folder) == job.hash(whole.folder)
    assert again.losses.tolist() == whole.losses.tolist()


@pytest.mark.parametrize("processes", [1, 4])
def test_a_run_goes_on_with_another_number_of_processes(
    job, one, killed, processes, tmp_path
):
    again = resumed(job, killed, processes, tmp_path)
    start = min(again.ids) - 1
    assert start in reader.list_steps(killed.folder / "checkpoints")
    assert again.ids == {s: ids for s, ids in one.ids.items() if s > start}
    assert_the_same_to_rounding(again, one)
