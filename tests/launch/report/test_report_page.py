"""The report is one whole, offline page that says what the run's files say."""

import re

import pytest
from page_parser import Page

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.report import write_report


def page_of(sample):
    return Page(write_report(sample.write()))


def test_the_numbers_of_the_run_are_on_the_page(sample):
    prose = page_of(sample).prose
    for words in (
        "data 4 x spatial_h 2",
        "data 4 across, spatial_h 2 down",
        "99.17 %",
        "357 of 360 samples held out",
        "36.4 ms",
        "p5 34.9, p95 39.8",
        "1,758 samples/s",
        "39.0 MB",
        "8.7 s",
        "resnet8, 78,330 parameters",
        "2026-03-14 08:00:00 to 08:00:35 UTC",
        "jaxdist train digits optim.lr=0.1",
        "548 kB",
        "Not compared: jaxdist compare digits --cluster NAME.",
        "No pipeline in this plan.",
        "20 values: 12 by default, 7 by the experiment, 1 on the command line.",
    ):
        assert words in prose


def test_every_configuration_value_says_who_set_it(sample):
    page = page_of(sample)
    for key, row in sample.lock["values"].items():
        value = row["value"]
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        text = "yes" if value is True else text
        assert re.search(
            rf"{re.escape(key)}\s*{re.escape(text)}\s*.\xa0{row['by']}", page.text
        )


def test_what_was_changed_stands_before_the_fold_of_all_values(sample):
    page = page_of(sample)
    text = page.source.partition('<section id="configuration">')[2]
    before, _, fold = text.partition("<details>")
    assert "<code>optim.lr</code>" in before
    assert "<code>model.name</code>" not in before  # by the experiment
    assert all(f"<code>{key}</code>" in fold for key in sample.lock["values"])


def test_the_page_asks_for_nothing(everything):
    page = Page(everything)
    assert page.all("img")
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert not re.search(r"@import|url\((?!#)", page.source)
    for _, attributes, _ in page.elements:
        for key in ("src", "href", "action", "data", "poster"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png;base64,"))
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_every_link_leads_to_a_section(sample):
    page = page_of(sample)
    ids = [a["id"] for _, a, _ in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)


def test_every_chart_says_what_it_shows(sample):
    page = page_of(sample)
    images = [a for a in page.all("svg") if a.get("role") == "img"]
    # The mesh, five plots, the loss over a logarithmic axis, the bar of the whole, six
    # phases, three collectives.
    assert len(images) == 1 + 5 + 1 + 1 + 6 + 3
    titled = [
        p[1]["aria-label"]
        for n, _, p in page.elements
        if n == "title" and "aria-label" in p[1]
    ]
    assert titled == [a["aria-label"] for a in images]
    assert all(titled)


def test_what_the_run_names_is_escaped(sample):
    evil = '<script>alert("x")</script>'
    sample.folder = sample.folder.parent / "evil"
    sample.run = type(sample.run)(
        **vars(sample.run)
        | {
            "name": evil,
            "experiment": evil,
            "bytes_by_collective": {evil: 5},
            "phases_s": {evil: 1.0, "compute": 2.0},
        }
    )
    sample.lock["values"] = {evil: {"value": evil, "by": evil}}
    sample.lock["packages"] = {evil: evil}
    sample.lock["command"] = evil
    page = page_of(sample)
    assert "alert" in page.prose
    assert len(page.all("script")) == 1
    assert "<script>alert" not in page.source


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(sample):
    import base64
    import hashlib

    page = page_of(sample)
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    for name in ("style", "script"):
        text = re.search(f"<{name}>(.*?)</{name}>", page.source, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_a_resume_is_told_and_drawn(sample):
    again = [row | {"time": row["time"] + 60} for row in sample.train[69:]]
    sample.train = sample.train[:90] + again
    page = page_of(sample)
    assert "Resumed 1 time; 21 steps were repeated." in page.prose
    assert "resume 1" in page.prose
    assert [a["data-l"] for a in page.all("td") if "data-l" in a].count(
        "From step"
    ) == 1


def test_a_killed_run_says_so_and_shows_what_it_left(sample):
    sample.run = None
    sample.train, sample.tests = sample.train[:90], sample.tests[:2]
    began = {
        "name": "checkpoint",
        "start": sample.train[-1]["time"],
        "step": 90,
        "begin": True,
    }
    sample.spans = [*sample.spans[:90], began]
    folder = sample.write()
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-25])
    prose = Page(write_report(folder)).prose
    assert (
        "no summary: still running, or killed at step 89; last seen in checkpoint"
        in prose
    )
    assert "1 in metrics.jsonl and spans.jsonl, cut off" in prose
    assert "36.4 ms" in prose
    assert "Memory a devicenot recorded" in prose
    assert "Not counted: the run has no summary." in prose


def test_an_empty_folder_still_makes_a_page(tmp_path):
    folder = tmp_path / "nothing"
    folder.mkdir()
    page = Page(write_report(folder))
    assert "No step was recorded." in page.prose
    assert "plan not recorded" in page.prose
    assert [a for a in page.all("svg") if a.get("role") == "img"] == []


@pytest.mark.parametrize("cut", ["summary.json", "plan.json", "config.lock.json"])
def test_a_file_cut_off_anywhere_still_makes_a_page(sample, cut):
    folder = sample.write()
    text = (folder / cut).read_text()
    for end in range(0, len(text), max(1, len(text) // 5)):
        (folder / cut).write_text(text[:end])
        assert "Learning" in Page(write_report(folder)).prose


def test_a_run_without_evaluation_has_no_accuracy_curve(sample):
    sample.tests = []
    sample.run = type(sample.run)(**vars(sample.run) | {"accuracy": None, "loss": None})
    prose = page_of(sample).prose
    assert "The run was not evaluated; training loss fell from" in prose
    assert "Test accuracynot evaluated" in prose
    assert "samples classified right, %" not in prose


def test_stages_are_drawn_side_by_side(sample):
    sample.plan = Plan(mesh=MeshShape(pipe=4, data=2, spatial_h=2))
    prose = page_of(sample).prose
    assert "pipe 4 x data 2 x spatial_h 2" in prose
    assert "data 2 across, spatial_h 2 down, pipe 4 side by side" in prose
    assert "stage 3" in prose
    assert "4 stages; the number of microbatches was not recorded." in prose


def test_a_wide_mesh_is_cut_and_says_so(sample):
    sample.plan = Plan(mesh=MeshShape(data=4096))
    page = page_of(sample)
    assert "data 4096 across, 8 drawn" in page.prose
    assert len(page.source) < 200_000


def test_a_long_run_stays_small(sample):
    first = sample.train[0]
    sample.train = [first | {"step": step} for step in range(1, 20_001)]
    page = page_of(sample)
    assert "each point is the mean of 67 steps" in page.prose
    assert len(page.source) < 100_000


def test_a_folder_that_does_not_exist_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="no run folder"):
        write_report(tmp_path / "missing")


def test_writing_again_replaces_the_page_and_leaves_nothing_else(sample):
    folder = sample.write()
    before = {path.name for path in folder.iterdir()}
    write_report(folder)
    write_report(folder)
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}


def test_the_command_writes_the_report_again(sample, capsys):
    folder = sample.write()
    assert main(["report", str(folder)]) == 0
    assert f"wrote {folder / 'report.html'}" in capsys.readouterr().out.replace(
        "\n", ""
    )
    (folder / "report.html").unlink()
    assert main(["report", "digit", "--dir", str(folder.parent)]) == 2
    assert "did you mean digits?" in capsys.readouterr().err
