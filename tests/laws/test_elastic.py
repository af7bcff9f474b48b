"""Laws 6 and 7 for elastic runs: one that loses a process and takes it back is whole."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.launch.launchers.elastic.process_counts import FeasibleCounts
from jaxdist.launch.launchers.elastic.supervisor import run_elastic
from jaxdist.launch.launchers.local import local_launch
from jaxdist.launch.launchers.processes.restart import RestartPolicy
from jaxdist.launch.run_folder.goodput import compute_goodput
from jaxdist.train.checkpoint import reader

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

SLOW = pytest.mark.slow
WORKER = Path(__file__).with_name("elastic_worker.py")
BATCH, STEPS, DIES_AT = 96, 14, 6
WORDS = (
    "model.width=4",
    "model.dropout=0.2",
    "data.shift=1",
    f"data.batch={BATCH}",
    f"epochs={(STEPS - 0.5) * BATCH / 1437}",
    "precision=float64",
    "plan.mesh.spatial_h=1",
    "checkpoint.every_steps=2",
    "checkpoint.keep=9",
)


class Shelter:
    """Places of which the second is there again when the others have trained."""

    def __init__(self, folder, command, count, env):
        self.folder, self.command, self.count, self.env = folder, command, count, env
        self.slot_names, self.on = tuple(f"place {n}" for n in range(count)), []

    def available(self, slots):
        lost = (self.folder / "died").exists() and not self._have_trained()
        return frozenset(slots) - ({1} if lost else set())

    def process_specs(self, slots, attempt):
        self.on.append(tuple(slots))
        each = local_launch(
            self.command,
            num_processes=len(slots),
            devices_per_process=1,
            planned_processes=self.count,
        )
        return each.process_specs(self.env)

    def _have_trained(self):
        traces = self.folder.glob(f"trace-*-{self.count - 1}-0")
        return any(len(path.read_text().splitlines()) >= 2 for path in traces)


class Elastic:
    """A run of so many processes that lost one and took it back."""

    def __init__(self, job, folder, count, *words):
        where = f"run.dir={folder}", f"data.dir={job.data}", f"plan.mesh.data={count}"
        run = sys.executable, WORKER, folder, count, DIES_AT, 0, *where, *WORDS, *words
        ground = Shelter(folder, tuple(map(str, run)), count, job.env)
        wanted = RestartPolicy(max_restarts=3)
        able = FeasibleCounts(counts=(count - 1, count), reports_training=True)
        self.code = run_elastic(ground, able, wanted, rejoin_after_s=0.01)
        self.folder, self.on = folder / "digits", ground.on
        self.traces = [
            (len(rows), merged(rows)) for rows in attempts(job, folder).values()
        ]

    @property
    def starts(self):
        """How many processes each attempt had, and the step before its first one."""
        return [(count, min(ids) - 1) for count, ids in self.traces]


def attempts(job, folder):
    """The lines of every rank of each attempt, in their order."""
    found = {}
    for path in sorted(folder.glob("trace-*")):
        attempt, _ = path.name.rsplit("-", 1)
        found.setdefault(attempt, []).append(job.lines(path))
    return found


def merged(rows):
    """The ids of each step that all ranks noted, in the order of the batch."""
    steps = [{row["step"]: row["held"] for row in rank} for rank in rows]
    common = set.intersection(*map(set, steps))
    pieces = {step: {} for step in sorted(common)}
    for rank in steps:
        for step in common:
            pieces[step] |= {int(at): ids for at, ids in rank[step].items()}
    return {
        step: [i for at in sorted(found) for i in found[at]]
        for step, found in pieces.items()
    }


def steps_done(job, folder):
    """The steps that each attempt has computed, in their order."""
    found = []
    for row in job.lines(folder / "spans.jsonl"):
        begins = row["name"] == "compile" and row["step"] == 0 and "begin" in row
        found += [set()] if begins else []
        found[-1] |= {row["step"]} - {0} if row["name"] == "compute" else set()
    return [sorted(attempt) for attempt in found]


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in rows if r["kind"] == "train"}


def leaves(folder):
    saved = folder / "checkpoints" / str(STEPS)
    return dict(reader.read_leaves(saved, reader.read_manifest(saved)))


@pytest.fixture(scope="module")
def whole(job, tmp_path_factory):
    """The run that nothing happens to, on the devices of one process."""
    folder = tmp_path_factory.mktemp("whole")
    where = f"run.dir={folder}", f"data.dir={job.data}"
    code, _, err = job.run("train", "digits", *where, *WORDS, "plan.mesh.data=3")
    assert code == 0, err
    return folder / "digits"


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(3, marks=SLOW), pytest.param(4, marks=SLOW)],
)
def elastic(job, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"elastic_{request.param}")
    return Elastic(job, folder, request.param)


def test_it_goes_on_with_fewer_and_takes_the_lost_one_back(job, elastic):
    assert elastic.code == 0
    every, *after = elastic.on
    assert tuple(n for n in every if n != 1) in after
    assert after[-1] == every
    first, lost, *_, back = elastic.starts
    assert (first, lost[0], back[0]) == ((len(every), 0), len(every) - 1, len(every))
    assert lost[1] in (2, 4)  # step 4 may not have been whole yet
    # Back at a step that all have saved: behind the loss nothing is done twice.
    done = steps_done(job, elastic.folder)
    assert [step for attempt in done[1:] for step in attempt] == [
        *range(lost[1] + 1, STEPS + 1)
    ]
    assert compute_goodput(job.lines(elastic.folder / "spans.jsonl")).attempts >= 3


def test_the_same_samples_whoever_is_there(elastic):
    order = GlobalShuffleOrder(num_samples=1437, batch=BATCH)
    fed = {}
    for _, ids in elastic.traces:
        fed |= ids
    assert fed == {s + 1: order.ids(s).tolist() for s in range(STEPS)}


def test_the_same_losses_and_the_same_parameters(elastic, whole):
    assert_the_same(elastic.folder, whole)


def assert_the_same(got, want):
    """Hold losses and the last state of one run folder against another's, to 1e-9."""
    found, end = losses(got), losses(want)
    assert list(found) == list(end) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(list(found.values()), list(end.values()), rtol=1e-9)
    found, end = leaves(got), leaves(want)
    assert set(found) == set(end)
    for name, leaf in end.items():
        assert np.abs(found[name] - leaf).max() <= 1e-9 * np.abs(leaf).max(), name


class ByHand:
    """Attempts of one process that are started and ended as an elastic run was."""

    def __init__(self, job, folder, elastic, *words):
        where = f"run.dir={folder}", f"data.dir={job.data}"
        alone = {"JAXDIST_RANK": "0", "JAXDIST_HOSTS": "1", "JAXDIST_COORDINATOR": ""}
        ends = [start for _, start in elastic.starts[1:]]
        for (devices, _), ends_at in zip(elastic.starts, [*ends, 0]):
            mesh = *WORDS, *words, f"plan.mesh.data={devices}"
            child = job.python(WORKER, folder, 1, 0, ends_at, *where, *mesh, **alone)
            _, err = child.communicate()
            assert child.returncode == (75 if ends_at else 0), err
        self.folder = folder / "digits"


@SLOW
@pytest.mark.parametrize(
    "way",
    [
        ("plan.reduce.algorithm=int8", "plan.reduce.min_compressed_elements=1"),
        (
            "plan.reduce.algorithm=top_k",
            "plan.reduce.density=0.05",
            "plan.reduce.momentum=0.9",
            "optim.momentum=0",
        ),
    ],
    ids=["int8", "top_k"],
)
def test_what_was_not_sent_goes_on_too(job, tmp_path, way):
    """With residuals: as if each attempt were asked for by hand, on as many devices."""
    for name in ("elastic", "by_hand"):
        (tmp_path / name).mkdir()
    run = Elastic(job, tmp_path / "elastic", 3, *way)
    hand = ByHand(job, tmp_path / "by_hand", run, *way)
    assert run.code == 0
    assert {count for count, _ in run.starts} == {3, 2}
    assert_the_same(run.folder, hand.folder)
    assert any(name.startswith("feedback/residual/") for name in leaves(run.folder))
    order = GlobalShuffleOrder(num_samples=1437, batch=BATCH)
    fed = {step: ids for _, found in run.traces for step, ids in found.items()}
    assert fed == {s + 1: order.ids(s).tolist() for s in range(STEPS)}
