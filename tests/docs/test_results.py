"""Results of benchmarks have one form, and the pages of docs/results are made of them."""

import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / "benchmarks" / "pages.py"))
RECORD = runpy.run_path(str(ROOT / "benchmarks" / "record.py"))
RESULTS = PAGES["load_results"]()
MADE = PAGES["make_pages"]()
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
ROW = RECORD["row"]


def test_the_committed_pages_are_what_the_results_make():
    for path, text in MADE.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: make results"
    assert set((ROOT / "docs" / "results").iterdir()) == set(MADE) - {
        ROOT / "docs" / "benchmarks.md"
    }


def test_the_table_of_the_readme_is_what_the_results_say():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert PAGES["make_readme"](text, RESULTS) == text, "make results"
    assert text.count("\n") <= 90


def test_a_figure_that_changes_changes_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = json.loads(json.dumps(RESULTS))
    row = changed["executed_best"]["rows"][0]
    row["value"] = 12345
    assert "12,345 ms with what" in PAGES["make_readme"](text, changed)


def test_pages_are_short():
    assert all(text.count("\n") <= 280 for text in MADE.values())


def test_every_result_is_on_one_page_and_headings_differ():
    named = [name for _, _, names in PAGES["PAGES"].values() for name in names]
    assert sorted(named) == sorted(RESULTS)
    for text in MADE.values():
        headings = re.findall(r"^#+ .*", text, re.MULTILINE)
        assert len(headings) == len(set(headings))


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_the_form_and_is_written_as_one(name):
    RECORD["check_result"](RESULTS[name])
    text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text()
    assert RECORD["format_result"](RESULTS[name]) == text


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_names_commands_that_exist(name):
    for line in RESULTS[name]["command"].splitlines():
        program, first, *_ = shlex.split(line)
        match program:
            case "python":
                assert (ROOT / first).is_file()
            case "make":
                assert first in TARGETS
            case _:
                assert program == "jaxdist"


READ = """
import argparse, json, runpy, sys
parse = argparse.ArgumentParser.parse_args

class HasRead(Exception):
    pass

def read_and_end(parser, *given):
    parse(parser, *given)
    raise HasRead

argparse.ArgumentParser.parse_args = read_and_end
for words in json.load(sys.stdin):
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except HasRead:
        continue
    except SystemExit as error:
        sys.exit(f"{words}: {error}")
    sys.exit(f"{words} are not read")
"""
"""Runs programs until they have read their words; ends with 1 at the first that cannot."""


def test_benchmarks_still_take_the_words_of_their_results():
    commands = [
        shlex.split(line)[1:]
        for result in RESULTS.values()
        for line in result["command"].splitlines()
        if line.startswith("python benchmarks/")
    ]
    if importlib.util.find_spec("torch") is None:
        commands = [one for one in commands if not one[0].endswith("_torch.py")]
    assert len(commands) > 60
    commands = [[str(ROOT / script), *words] for script, *words in commands]
    done = subprocess.run(
        [sys.executable, "-c", READ],
        cwd=ROOT / "benchmarks",
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr


def anchors(page):
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {PAGES["slug"](re.sub(r"\[(.*?)\]\(.*?\)", r"\1", h)) for h in headings}


def test_links_to_results_lead_to_a_heading():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    seen = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\(([^)\s#]+\.md)#([^)\s]+)\)", text):
            target = (page.parent / link).resolve()
            if "results" in target.parts or target.name == "benchmarks.md":
                assert anchor in anchors(target), (page, link, anchor)
                seen += 1
    assert seen > 100


@pytest.fixture
def record(monkeypatch, tmp_path):
    """The module as a benchmark that writes into a folder of its own imports it."""
    spec = importlib.util.spec_from_file_location("record", RECORD["__file__"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = ["benchmarks/overhead.py", "--rounds", "3", "--record"]
    monkeypatch.setattr(sys, "argv", words)

    def write(rows, **described):
        path = module.write_result("speed", rows, folder=tmp_path, **described)
        return json.loads(path.read_text())

    return write


def test_recording_writes_figures_date_machine_and_command(record):
    rows = [ROW("step", 0.123456, "s", readings=[0.1, 0.2, 0.123456])]
    made = record(rows, title="Speed", measures="Seconds of a step.")
    assert made["command"] == "python benchmarks/overhead.py --rounds 3"
    assert made["machine"]["cores"] >= 1
    assert made["rows"][0]["value"] == 0.12346
    assert made["rows"][0]["spread"] == {"range": [0.1, 0.2]}
    assert made["rows"][0]["n"] == 3


def test_recording_again_keeps_texts_and_goals_but_no_figure(record, tmp_path):
    first = record([ROW("step", 1.0, "s")], title="Speed", measures="A step.")
    first["rows"][0]["goal"] = "2 s"
    (tmp_path / "speed.json").write_text(RECORD["format_result"](first))
    again = record([ROW("step", 1.5, "s"), ROW("loop", 2.0, "s")])
    assert again["title"] == "Speed"
    assert [(r["value"], r["goal"]) for r in again["rows"]] == [
        (1.5, "2 s"),
        (2.0, None),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": None}, "title must be"),
        ({"machine": {"cpu": "a"}}, "machine has no cores"),
        ({"date": "yesterday"}, "does not match format"),
        ({"rows": []}, "no rows"),
        ({"rows": [ROW("a", 1, "s")] * 2}, "is there twice"),
        ({"rows": [{"case": "a"}]}, "has no figure"),
        ({"rows": [ROW("a", 1, "s") | {"spread": 3}]}, "no spread"),
        ({"rows": [ROW("a", 1, "s") | {"value": None}]}, "neither a value nor a range"),
        ({"rows": [ROW("a", 1, "s") | {"spread": {"range": [2, 1]}}]}, "no range"),
    ],
)
def test_a_result_of_another_form_is_refused(change, said):
    result = next(iter(RESULTS.values())) | change
    with pytest.raises(ValueError, match=said):
        RECORD["check_result"](result)
