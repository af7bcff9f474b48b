"""The report in a browser: nothing asked for, nothing wrong, everything legible."""

import json
from pathlib import Path

import pytest
from chromium import Chromium

from jaxdist.launch.report import write_report, write_runs_page
from jaxdist.launch.run_folder.folder import RunFolder

pytestmark = [pytest.mark.system, pytest.mark.browser, pytest.mark.timeout(300)]
MEASURE = Path(__file__).with_name("measure.js").read_text(encoding="utf-8")
PHONE, SCREEN, SHEET = 390, 1280, 703  # A4 without its margins
LOOKS = [
    pytest.param(SCREEN, "light", "screen", id="light"),
    pytest.param(SCREEN, "dark", "screen", id="dark"),
    pytest.param(PHONE, "light", "screen", id="phone"),
    pytest.param(PHONE, "dark", "screen", id="dark-phone"),
    pytest.param(SHEET, "dark", "print", id="print"),
]
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """The report of a run in stages that was watched and compared."""
    runs = tmp_path_factory.mktemp("runs")
    words = "plan.mesh.pipe=4 plan.mesh.data=2 plan.mesh.spatial_h=1 epochs=0.6"
    own = f"optim.accumulate=4 run.dir={runs} data.dir={job.data} run.name=piped"
    watch = "--profile", "steps=4:9"
    done = job.run("train", "digits", *words.split(), *own.split(), *watch)
    assert done[0] == 0, done[2]
    done = job.run("compare", runs / "piped", "--cluster", "cpu-fake")
    assert done[0] == 0, done[2]
    return runs / "piped" / "report.html"


def checked(browser, page, width, scheme, media):
    seen = browser.opens(page, width=width, scheme=scheme, media=media)
    assert (seen.said, seen.asked) == ([], [])
    found = browser.runs(MEASURE)
    assert found["paper"] == PAPER["light" if media == "print" else scheme]
    assert found["wide"] <= found["has"]
    assert found["drawn"] > 10
    for wrong in ("overlaps", "cut", "pale"):
        assert found[wrong] == [], f"{wrong} at {width} px"


@pytest.mark.parametrize(("width", "scheme", "media"), LOOKS)
def test_a_real_run_is_legible(browser, trained, width, scheme, media):
    checked(browser, trained, width, scheme, media)


@pytest.mark.parametrize(("width", "scheme", "media"), LOOKS)
def test_a_run_with_every_section_is_legible(browser, everything, width, scheme, media):
    checked(browser, everything, width, scheme, media)


@pytest.mark.parametrize(("width", "scheme", "media"), LOOKS)
def test_runs_beside_each_other_are_legible(
    browser, sample_at, tmp_path, width, scheme, media
):
    names = ("digits", "with-a-long-name-of-its-own", "third")
    runs = [RunFolder(sample_at(tmp_path / name).write()) for name in names]
    page = write_runs_page(runs, tmp_path / "page.html")
    checked(browser, page, width, scheme, media)


def test_a_run_of_which_little_is_known_is_legible(browser, sample):
    sample.run, sample.lock, sample.tests = None, None, []
    checked(browser, write_report(sample.write()), PHONE, "dark", "screen")


def test_the_check_sees_what_is_wrong(browser, sample, tmp_path):
    bad = (
        '<svg width="90" height="9"><text y="9">one</text><text y="9">two</text></svg>'
    )
    bad += '<p style="color: #ccc; width: 3000px">pale</p>'
    page = tmp_path / "bad.html"
    page.write_text(f"{bad}<script>console.log(1)</script><img src='http://[::1]:9/'>")
    seen = browser.opens(page, width=SCREEN)
    found = browser.runs(MEASURE)
    assert seen.asked == ["http://[::1]:9/"]
    assert seen.said
    assert found["overlaps"] == ["one | two"]
    assert found["pale"] == ["pale: 1.61"]
    assert found["wide"] > found["has"]


def test_values_are_sorted_searched_and_filtered(browser, sample):
    seen = browser.opens(write_report(sample.write()), width=SCREEN)
    shown = "[...document.querySelectorAll('#values tbody tr')].filter(r => r.checkVisibility())"
    first = f"{shown}[0].cells[0].textContent"
    assert browser.runs(f"{shown}.length") == 0  # folded
    browser.runs("document.querySelector('#configuration details').open = true")
    browser.runs("document.querySelector('#values thead button').click()")
    assert browser.runs(first) == "checkpoint.keep"
    browser.runs("document.getElementById('by-experiment').click()")
    by = json.dumps(sorted({row["by"] for row in sample.lock["values"].values()}))
    assert "experiment" in by
    assert browser.runs(f"{shown}.every(r => r.dataset.by === 'experiment')")
    browser.runs("document.getElementById('by-all').click()")
    typed = "find.value = 'mesh data'; find.dispatchEvent(new Event('input'))"
    browser.runs(f"{{ const find = document.getElementById('find'); {typed} }}")
    assert browser.runs(f"{shown}.length") == 1
    assert seen.said == []


def test_a_pointer_is_told_the_values_under_it(browser, sample):
    page = write_report(sample.write())
    seen = browser.opens(page, width=SCREEN)
    for kind in ("linear", "log"):
        plot = f"document.querySelector('#learning .{kind} > svg')"
        browser.runs(
            f"document.querySelector('.scale input').checked = {json.dumps(kind == 'log')}"
        )
        assert browser.runs(f"{plot}.checkVisibility()")
        area = f"{plot}.getBoundingClientRect()"
        at = f"{{clientX: {area}.left + {area}.width, clientY: {area}.top + 5}}"
        browser.runs(f"{plot}.dispatchEvent(new PointerEvent('pointermove', {at}))")
        told = browser.runs("document.querySelector('.hover').textContent").split("\n")
        end, test = sample.train[-1], sample.tests[-1]["loss"]
        assert told[0] == f"step {end['step']}, epoch 30.02"
        assert told[1].startswith("training 0.0")
        assert told[2] == f"test {test:.4g}"
        browser.runs(f"{plot}.dispatchEvent(new PointerEvent('pointerleave'))")
        assert not browser.runs("document.querySelector('.hover, .dot') !== null")
    assert seen.said == []
