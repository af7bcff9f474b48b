"""A measured link is the same in every process, and a run keeps what it chose."""

import sys

import jax
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate import reduction_timings
from jaxdist.calibrate.reduction_timings import measure_reduction_link
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS, AutoAlgorithm
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import read_config_lock

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def small_matrices(monkeypatch):
    """Two sizes are the fewest; all of them are timed by processes of their own."""
    monkeypatch.setattr(reduction_timings, "MATRIX_SIDES", (160, 512))


WORKER = """
import jax
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.launch.distributed import initialize
from jaxdist.calibrate.reduction_timings import measure_reduction_link

initialize()
mesh = jax.make_mesh((jax.process_count(),), ("data",))
print(measure_reduction_link(mesh, "data", [ALL_REDUCE_ALGORITHMS["exact"], ALL_REDUCE_ALGORITHMS["int8"]]))
"""


@pytest.mark.usefixtures("small_matrices")
def test_a_link_has_a_pace_for_each_way_and_auto_can_choose_by_it():
    mesh = jax.make_mesh(
        (2, 2),
        ("data", "fsdp"),
        devices=jax.devices()[:4],
        axis_types=(AxisType.Auto,) * 2,
    )
    among = (ALL_REDUCE_ALGORITHMS["exact"], ALL_REDUCE_ALGORITHMS["int8"])
    link = measure_reduction_link(mesh, "data", among)
    assert link.devices == 2
    assert [pace.algorithm for pace in link.overheads] == ["exact", "int8"]
    assert link.bytes_per_s > 0
    found = AutoAlgorithm(candidates=among, link=link).select(
        [(64, 64)], "float32", {"data": 2}
    )
    assert found in among


def test_all_processes_come_to_the_same_link(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, str(tmp_path / "worker.py")]
    done = Loopback(2).run(command, timeout=200)
    first, second = (each.stdout.splitlines()[-1] for each in done)
    assert first == second
    assert first.startswith("Link(devices=2")


@pytest.mark.usefixtures("small_matrices")
def test_a_run_says_what_it_chose_and_goes_on_with_it(job, tmp_path):
    words = (f"run.dir={tmp_path}", f"data.dir={job.data}", "run.name=chosen")
    words += (
        "model.width=4",
        "plan.reduce.algorithm=auto",
        "plan.reduce.candidates=exact,sign",
    )
    words += ("plan.mesh.data=2", "plan.reduce.min_compressed_elements=0")
    code, out, err = job.call("train", "digits", "epochs=0.2", *words)
    assert code == 0, err
    assert "out of exact, sign; 2 devices along data" in " ".join((out + err).split())
    kept = read_config_lock(
        RunFolder(tmp_path / "chosen")
    ).resolved.config.plan.reduce.algorithm
    assert kept in ("exact", "sign")
    code, out, err = job.call("train", "digits", "epochs=0.4", "--change", *words)
    assert code == 0, err
    assert f"{kept}, as this run began" in " ".join((out + err).split())


def test_ways_that_cannot_be_chosen_from_are_refused(job, tmp_path):
    words = (
        f"run.dir={tmp_path}",
        f"data.dir={job.data}",
        "plan.reduce.algorithm=auto",
    )
    code, _, err = job.call(
        "train", "digits", *words, "plan.reduce.candidates=int9,ring"
    )
    assert code == 2
    assert "plan.reduce.candidates=exact,int8,ring" in err
