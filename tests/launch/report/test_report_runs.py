"""Several runs on one page: a curve a run in each chart, figures, and what differs."""

import json
from dataclasses import replace

import pytest
from page_parser import Page

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.report import write_runs_page
from jaxdist.launch.run_folder.folder import RunFolder


def put(sample, **values):
    """Write a run with some settings of its own."""
    folder = sample.folder
    sample.run = replace(sample.run, name=folder.name)
    for key, value in {"run.name": folder.name, **values}.items():
        sample.lock["values"][key] = {"value": value, "by": "command line"}
    return RunFolder(sample.write())


@pytest.fixture
def runs(sample_at, tmp_path):
    changes = {"optim.lr": 0.3, "data.batch": 32}
    return [
        put(sample_at(tmp_path / "first")),
        put(sample_at(tmp_path / "second", 10), **changes),
        put(sample_at(tmp_path / "third"), seed=7),
    ]


def test_each_chart_has_a_curve_of_each_run(runs, tmp_path):
    page = Page(write_runs_page(runs, tmp_path / "report.html"))
    charts = [a for a in page.all("svg") if a.get("role") == "img"]
    names = [a["aria-label"].partition(":")[0] for a in charts]
    assert names == [
        *("Training loss", "Training loss, logarithmic", "Test loss"),
        *("Test loss, logarithmic", "Test accuracy", "Throughput", "Learning rate"),
    ]
    for chart in charts:
        assert all(run.name in chart["aria-label"] for run in runs)
    lines = [a for a in page.all("polyline") if a["data-name"] == "second"]
    assert len(lines) == len(charts)
    assert {line["class"] for line in lines} == {"ln s-data"}


def test_runs_of_other_batches_are_drawn_by_epochs(runs, tmp_path):
    page = Page(write_runs_page(runs, tmp_path / "page.html"))
    assert {a["data-x"] for a in page.all("svg") if "data-x" in a} == {"epoch"}
    line = next(a for a in page.all("polyline") if a["data-name"] == "second")
    # Ten epochs of those of batch 64 are five of batch 32.
    assert float(line["data-values"].split()[-1].split(",")[0]) == pytest.approx(
        225 * 32 / 1437, abs=1e-3
    )
    page = Page(write_runs_page([runs[0], runs[2]], tmp_path / "page.html"))
    found = {(a["data-x"], a["data-epoch"]) for a in page.all("svg") if "data-x" in a}
    assert found == {("step", "22.4531")}


def test_what_differs_is_beside_each_other(runs, tmp_path):
    prose = Page(write_runs_page(runs, tmp_path / "report.html")).prose
    told = prose.partition("What differs")[2]
    assert "data.batch643264 optim.lr0.10.30.1 seed007 " in told
    assert "run.name" not in told
    assert "model.name" not in told


def test_runs_lead_to_their_own_reports(runs, tmp_path):
    (tmp_path / "pages").mkdir()
    page = Page(write_runs_page(runs, tmp_path / "pages" / "page.html"))
    assert [a["href"] for a in page.all("a")] == [
        f"../{name}/report.html" for name in ("first", "second", "third")
    ]


def test_runs_of_one_name_are_told_apart_by_their_folders(sample_at, tmp_path):
    folders = tmp_path / "a" / "digits", tmp_path / "digits"
    twice = [put(sample_at(folder)) for folder in folders]
    prose = Page(write_runs_page(twice, tmp_path / "page.html")).prose
    assert str(tmp_path / "a" / "digits") in prose
    assert "configurations and the packages are the same" in prose


def test_a_run_without_steps_has_a_row_and_no_curve(runs, tmp_path):
    (runs[0].path / "metrics.jsonl").write_text("")
    (runs[0].path / "summary.json").unlink()
    page = Page(write_runs_page(runs[:2], tmp_path / "page.html"))
    assert {line["data-name"] for line in page.all("polyline")} == {"second"}


@pytest.mark.parametrize("count", [2, 9])
def test_too_many_runs_or_the_same_twice_are_refused(runs, tmp_path, count):
    with pytest.raises(BadInput, match="cannot stand beside each other"):
        write_runs_page(runs[:1] * count, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_command_takes_several_runs(runs, tmp_path, capsys):
    names = [run.name for run in runs]
    assert main(["report", *names, "--dir", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()
    page = tmp_path / "other.html"
    assert main(["report", *names, "--dir", str(tmp_path), "-o", str(page)]) == 0
    assert page.read_text() == (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert main(["report", names[0], "--dir", str(tmp_path), "-o", str(page)]) == 2
    assert "lies in its folder" in capsys.readouterr().err


def test_packages_that_differ_are_named(runs, tmp_path):
    path = runs[0].config_lock
    tree = json.loads(path.read_text())
    tree["packages"]["jax"] = "0.9.0"
    path.write_text(json.dumps(tree))
    prose = Page(write_runs_page(runs[:2], tmp_path / "page.html")).prose
    assert "package jax0.9.00.10.2" in prose
