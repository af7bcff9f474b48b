"""`jaxdist scale`: its runs are data, its figures are read, its gaps are named."""

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, FatalError
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.run_record import Run
from jaxdist.launch.cli.main import main
from jaxdist.launch.config import Experiment
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.run_folder.folder import folder_lock
from jaxdist.launch.scaling.grid import (
    NO_REDUCE,
    ScalingGrid,
    ScalingRun,
    parse_grid,
    plan_overrides,
    scaling_runs,
)
from jaxdist.launch.scaling.html_page import render_page
from jaxdist.launch.scaling.json_view import scaling_tree
from jaxdist.launch.scaling.placement import ScalingPlacement, single_thread_env
from jaxdist.launch.scaling.results import FailedRun, ScalingResult
from jaxdist.launch.scaling.run_metrics import ScalingMeasurement, measurement_from_rows
from jaxdist.launch.scaling.runner import run_study
from jaxdist.launch.scaling.study import ScalingStudy, make_study


class TestCells:
    @given(
        counts=st.sets(st.integers(1, 8), min_size=1),
        batches=st.sets(st.sampled_from([840, 1680]), min_size=1),
        reduces=st.sets(st.sampled_from(["ring", "int8", "exact"]), min_size=1),
        sources=st.sets(st.sampled_from(["real", "synthetic"]), min_size=1),
        scaling=st.sampled_from(["strong", "weak"]),
    )
    def test_each_combination_is_one_run(
        self, counts, batches, reduces, sources, scaling
    ):
        def listed(some):
            return ",".join(map(str, some))

        grid = parse_grid(
            processes=listed(counts),
            batches=listed(batches),
            reductions=listed(reduces),
            inputs=listed(sources),
            scaling=scaling,
        )
        found = scaling_runs(grid)
        more = sum(count > 1 for count in counts)
        ways = more * len(reduces) + (1 in counts)
        assert len(found) == ways * len(batches) * len(sources)
        assert len({cell.name for cell in found}) == len(found)
        assert all(cell.batch % cell.processes == 0 for cell in found)

    def test_what_stays_is_what_the_scaling_says(self):
        grid = ScalingGrid(processes=(1, 2), batches=(64,), reductions=("ring",))
        assert [c.batch for c in scaling_runs(grid)] == [64, 64]
        weak = replace(grid, scaling="weak")
        assert [c.batch for c in scaling_runs(weak)] == [64, 128]

    def test_a_plan_of_many_axes_keeps_data_alone(self):
        plan = Plan(mesh=MeshShape(data=2, spatial_h=2, tensor=2), spatial_end="block2")
        words = plan_overrides(plan, a_cell(4))
        assert "plan.mesh.data=4" in words
        assert "plan.mesh.tensor=1" in words
        assert "plan.spatial_end=" in words


REFUSED = [
    (["--processes", "0"], "--processes is between 1 and 64"),
    (["--processes", "1,x"], "--processes is whole numbers with commas"),
    (["--processes", "1,2", "--batch", "0"], "--batch is between 1 and"),
    (["--processes", "1,6"], "--batch 66 or --batch 60, or 4 or 2 processes"),
    (["--processes", "2", "--algorithms", "rng"], "did you mean ring?"),
    (["--processes", "2", "--input", "syntetic"], "did you mean synthetic?"),
    (["--processes", "2", "--scaling", "week"], "did you mean weak?"),
    (["--processes", "2", "plan.mesh.data=2"], "remedy   --processes 1,2,4"),
    (["--processes", "2", "plan.reduce.algorithm=ring"], "remedy   --algorithms ring"),
    (["--processes", "2", "epochs=0.1"], "remedy   epochs=1"),
    (["--processes", "2", "--batch", "2048"], "of different samples each"),
    (["--processes", "2", "optm.lr=1"], "did you mean optim.lr?"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_is_refused_before_anything_starts(
    job, tmp_path, capsys, words, said
):
    folder = tmp_path / "study"
    data = f"data.dir={job.data}"
    assert main(["scale", "digits", data, *words, "-o", str(folder)]) == 2
    assert said in capsys.readouterr().err
    assert not folder.exists()


def a_cell(processes, *, batch=64, reduce="ring", source="real"):
    way = reduce if processes > 1 else NO_REDUCE
    return ScalingRun(
        processes=processes, batch=batch, grid_batch=batch, reduction=way, input=source
    )


def rows_of(seconds, tested=()):
    """Return the lines of a run whose steps took so long, an input span in each."""
    metrics = [
        {"kind": "train", "step": n, "loss": 2.0 / n, "step_s": s}
        for n, s in enumerate(seconds, 1)
    ]
    spans = [
        {"name": "input", "step": n, "start": 0.0, "seconds": 0.001}
        for n in range(1, len(seconds) + 1)
    ]
    spans += [{"name": "evaluation", "step": n, "seconds": 9.0} for n in tested]
    return metrics, spans


def a_run(sent=1000):
    return Run(
        name="r",
        experiment="digits",
        parameters=77,
        bytes_by_collective={"all-reduce, data": sent},
    )


class TestReading:
    def test_steps_that_settle_or_follow_a_test_are_no_measure(self):
        seconds = [9, 9, 9, 0.02, 0.02, 9, 0.02, 0.02]
        metrics, spans = rows_of(seconds, tested=(5,))
        found = measurement_from_rows(a_cell(2), a_run(), 640, metrics, spans)
        assert found.step_seconds == (0.02,) * 4
        assert found.samples_per_s == 64 / 0.02
        assert found.epoch_s == pytest.approx(640 / 64 * 0.02)
        assert found.input_wait_share == pytest.approx(0.001 / 0.02)
        assert found.loss_curve[1] == (0.2, 1.0)

    def test_the_range_is_that_of_slow_and_fast_steps(self):
        metrics, spans = rows_of([9, 9, 9, *(n / 1000 for n in range(10, 31))])
        found = measurement_from_rows(a_cell(1), a_run(), 640, metrics, spans)
        low, high = found.samples_per_s_range
        assert (low, high) == (64 / 0.029, 64 / 0.011)
        assert low < found.samples_per_s < high

    def test_no_steady_step_is_said(self):
        metrics, spans = rows_of([1, 1, 1])
        with pytest.raises(FatalError, match="none of 3 steps is steady"):
            measurement_from_rows(a_cell(1), a_run(), 640, metrics, spans)


def a_reading(cell, step_s, *, sent=1000, losses=(2.0, 1.0)):
    return ScalingMeasurement(
        run=cell,
        samples=1437,
        parameters=77_562,
        step_seconds=(step_s,) * 9,
        input_wait_s=0.0,
        sent_bytes=sent,
        losses=losses,
    )


def a_result(
    *readings, lost=(), reduces=("ring",), scaling="strong", sources=("real",)
):
    runs = [*(one.run for one in readings), *(one.cell for one in lost)]
    counts = {run.processes for run in runs}
    asked = dict.fromkeys(run.grid_batch for run in runs)
    grid = ScalingGrid(
        processes=tuple(sorted(counts)),
        batches=tuple(asked),
        reductions=reduces,
        inputs=sources,
        scaling=scaling,
    )
    return ScalingResult(
        experiment="digits",
        grid=grid,
        place=ScalingPlacement(cores=2),
        readings=readings,
        lost=lost,
    )


class TestResult:
    def test_half_the_seconds_on_twice_the_processes_is_efficient(self):
        one, two = a_reading(a_cell(1), 0.1), a_reading(a_cell(2), 0.05)
        four = a_reading(a_cell(4), 0.05)
        result = a_result(one, two, four)
        efficient = [result.efficiency(r) for r in (one, two, four)]
        assert efficient == pytest.approx([1.0, 1.0, 0.5])

    def test_weak_scaling_is_efficient_where_a_step_takes_no_longer(self):
        one = a_reading(a_cell(1), 0.1)
        two = a_reading(replace(a_cell(2), batch=128), 0.1)
        assert a_result(one, two, scaling="weak").efficiency(two) == pytest.approx(1)

    def test_without_its_base_nothing_is_efficient(self):
        two = a_reading(a_cell(2), 0.05)
        lost = FailedRun(cell=a_cell(1), why="gone", log="log")
        result = a_result(two, lost=(lost,))
        assert result.efficiency(two) is None
        assert scaling_tree(result)["runs"][0]["efficiency"] is None

    def test_losses_are_held_against_the_same_steps_alone(self):
        one = a_reading(a_cell(1), 0.1)
        two = a_reading(a_cell(2), 0.05, losses=(2.0, 1.01))
        other = a_reading(a_cell(2, batch=128), 0.05, losses=(7.0, 7.0))
        (found,) = a_result(one, two, other).drifts
        assert (found.cell, found.against) == (two.run, one.run)
        assert (found.first, found.last) == (0.0, pytest.approx(0.01))


def test_the_page_shows_every_run_and_asks_for_nothing():
    cases = [(n, b) for b in (64, 128) for n in (1, 2, 4)]
    readings = [
        a_reading(a_cell(n, batch=b), 0.001 + 1e-4 * b / n + 1e-3 * n, sent=1000 * n)
        for n, b in cases
    ]
    lost = FailedRun(cell=a_cell(8), why="<b>killed", log="p8.log")
    page = render_page(a_result(*readings, lost=(lost,)))
    for reading in readings:
        assert f">{reading.samples_per_s:,.0f}<" in page
    assert "&lt;b&gt;killed" in page
    assert "fitted, 6 points for 3 unknowns" in page.replace("&nbsp;", " ")
    assert page.count("<figure") == 2 * 3
    assert not re.search(r"https?:|@import|url\((?!#)|<link|<img", page)


@dataclass(frozen=True, kw_only=True)
class Somewhere(ScalingPlacement):
    """A place where processes run other programs than a training."""

    starts: Path
    """File with a line for each run."""

    def tasks(self, command, count, attempt):
        name = next(w for w in command if w.startswith("run.name=")).split("=")[1]
        with self.starts.open("a") as file:
            file.write(f"{name}\n")
        says = "import sys; print('error: out of luck'); sys.exit(3)"
        makes = "from pathlib import Path; import json, sys; f = Path(sys.argv[1]); f.mkdir();"
        for name, text in files_of_a_run().items():
            makes += f"(f / {name!r}).write_text({text!r});"
        text = says if count == 2 else makes
        run = next(w for w in command if w.startswith("run.dir=")).split("=")[1]
        folder = f"{run}/{self.starts.read_text().split()[-1]}"
        here = ProcessSpec(command=(sys.executable, "-c", text, folder), env={})
        return [here] * (1 if count != 2 else 2)


def files_of_a_run():
    metrics, spans = rows_of([0.02] * 12)
    return {
        "summary.json": a_run().to_json(),
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in metrics),
        "spans.jsonl": "".join(json.dumps(row) + "\n" for row in spans),
    }


@pytest.fixture
def study(tmp_path):
    return ScalingStudy(
        experiment="digits",
        overrides=("epochs=1",),
        config=Experiment(name="digits"),
        grid=ScalingGrid(processes=(1, 2, 4), batches=(64,), reductions=("ring",)),
        placement=Somewhere(cores=2, starts=tmp_path / "starts"),
        folder=tmp_path / "study",
        samples=640,
    )


class TestExecution:
    def test_a_run_that_fails_is_named_and_the_others_go_on(self, study):
        result = run_study(study, lambda *told: None)
        assert [one.run.processes for one in result.readings] == [1, 4]
        (lost,) = result.lost
        assert lost.cell.name == "p2-b64-ring-real"
        assert "ended with 3: error: out of luck" in lost.why
        assert "out of luck" in Path(lost.log).read_text()

    @pytest.mark.parametrize("busy", [80, 10])
    def test_other_work_on_the_cores_is_said_before_a_run(
        self, study, monkeypatch, capsys, busy
    ):
        monkeypatch.setattr("psutil.cpu_percent", lambda seconds: busy)
        result = run_study(study, lambda *told: None)
        warning = (
            "warn: other work takes 80 % of the cores: the next figures are of both\n"
        )
        log = study.log_path(study.runs[0]).read_text()
        assert (warning in capsys.readouterr().err) == (busy == 80)
        assert log.startswith(warning) == (busy == 80)
        # The page, the table and the data have it too, also of runs made before.
        taken = "other work takes 80 % of the cores"
        for found in (result, run_study(study, lambda *told: None)):
            page = render_page(found).replace("\N{NO-BREAK SPACE}", " ")
            page = page.replace("&nbsp;", " ")
            assert (taken in page) == (busy == 80)
            tree = scaling_tree(found)["runs"][0]["other_work"]
            assert tree == (taken if busy == 80 else "")

    def test_what_is_whole_is_not_run_again(self, study):
        for _ in range(2):
            run_study(study, lambda *told: None)
        started = study.placement.starts.read_text().split()
        once = ["p1-b64-none-real", "p2-b64-ring-real", "p4-b64-ring-real"]
        assert started == [*once, "p2-b64-ring-real"]

    def test_a_run_in_two_attempts_is_made_again(self, study):
        run_study(study, lambda *told: None)
        summary = study.run_folder(study.runs[0]).summary
        half = replace(Run.from_json(summary.read_text()), resumed_at=7)
        summary.write_text(half.to_json())
        # What is no run is not deleted, nor is a run in which a process works.
        with pytest.raises(BadInput, match="in the way") as refused:
            run_study(study, lambda *told: None)
        assert "no run folder" in refused.value.values
        with (
            folder_lock(study.run_folder(study.runs[0])),
            pytest.raises(BadInput, match="in the way") as refused,
        ):
            run_study(study, lambda *told: None)
        assert "at work" in refused.value.values
        assert summary.is_file()
        run_study(study, lambda *told: None)
        assert study.placement.starts.read_text().split().count("p1-b64-none-real") == 2

    def test_a_folder_of_another_study_is_refused(self, study, job, capsys):
        study.write_manifest()
        words = f"data.dir={job.data}", "--processes", "2", "-o", str(study.folder)
        assert main(["scale", "digits", *words]) == 2
        assert "holds another study" in capsys.readouterr().err

    def test_a_study_of_an_older_version_goes_on(self, study):
        now = replace(
            study,
            overrides=("epochs=1", "data.cache=none"),
            grid=replace(study.grid, inputs=("synthetic",)),
            samples=study.config.data.samples,
        )
        now.write_manifest()
        file = now.folder / "study.json"
        file.write_text(file.read_text().replace("data.cache=", "data.store="))
        again = make_study(
            *(now.experiment, now.overrides, now.config, now.grid, now.placement),
            now.folder,
        )
        assert again == now


def test_a_process_of_a_study_computes_in_one_thread():
    env = single_thread_env({"XLA_FLAGS": "--xla_dump_to=here", "NPROC": "8"})
    assert env["NPROC"] == env["OMP_NUM_THREADS"] == "1"
    assert env["XLA_FLAGS"].split()[0] == "--xla_dump_to=here"
    assert "multi_thread_eigen=false" in env["XLA_FLAGS"]


def test_a_testbed_that_is_not_up_is_refused(capsys, monkeypatch):
    def gone():
        raise BadInput("no testbed is up")

    monkeypatch.setattr("jaxdist.launch.scaling.placement.load_testbed", gone)
    assert main(["scale", "digits", "--processes", "2", "--testbed"]) == 2
    assert "no testbed is up" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_study_of_two_processes(job, tmp_path):
    words = "--processes", "1,2", "--algorithms", "ring", "--input", "real,synthetic"
    where = f"data.dir={job.data}", "-o", tmp_path / "study"
    code, out, err = job.run(
        "scale", "digits", "model.width=4", *words, *where, "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert [run["run"] for run in found["runs"]] == [
        f"{run}-{source}"
        for source in ("real", "synthetic")
        for run in ("p1-b64-none", "p2-b64-ring")
    ]
    one, ring = found["runs"][:2]
    assert one["bytes_sent"] == 0 < ring["bytes_sent"]
    assert one["efficiency"] == 1
    losses = {drift["run"]: drift for drift in found["losses"]}
    assert losses["p2-b64-ring-real"]["first_step"] < 1e-6
    assert not found["failed"]
    assert not any(fit["fitted"] for fit in found["fits"])
    assert (tmp_path / "study" / "scale.html").is_file()
