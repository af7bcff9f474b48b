"""A step compiled for a machine that is not here, in a report and as a page."""

import json
from dataclasses import fields

import pytest
from page_parser import Page
from sample_runs import compiled

from jaxdist.core.errors import BadInput
from jaxdist.launch.analysis.target_compile import CompiledStep
from jaxdist.launch.cli.main import main
from jaxdist.launch.report import write_report, write_target_page


def section(sample, **more):
    folder = sample.write()
    sample.put("compiled.json", json.dumps(compiled(**more)))
    text = write_report(folder).read_text(encoding="utf-8").replace("&nbsp;", " ")
    return text.partition('<section id="target">')[2].partition("</section>")[0]


def test_what_is_drawn_is_what_the_command_writes():
    assert compiled().keys() == {field.name for field in fields(CompiledStep)}


def test_a_step_that_fits_says_where_memory_and_cycles_go(sample):
    text = section(sample)
    assert "fits: <b>10.9 MB</b> of 17.2 GB a device of tpu-v5e:2x4" in text
    assert "estimated at <b>0.66 ms</b>, 56.1 % of it waiting" in text
    assert "activations and temporaries" in text
    assert "loss, optimizer, the rest: 137 k" in text
    assert ">73.2 %</td>" in text  # of what is sent, hidden
    assert "sent in 16 bits" in text
    assert "without contention on links" in text


def test_what_is_on_the_host_is_said(sample):
    assert "on its host" not in section(sample)
    assert "a device of tpu-v5e:2x4, and 2.15 GB on its host;" in section(
        sample, host_bytes=2147483648
    )


def test_a_step_that_does_not_fit_or_differs_says_so(sample):
    text = section(sample, fits=False, differences=["an all-gather nobody planned"])
    assert "<b>does not fit</b>" in text
    assert "Differs from its plan:</b> an all-gather nobody planned" in text


def test_a_compiler_without_estimates_has_no_cycles(sample):
    nothing = dict.fromkeys(("cycles", "compute_s", "exposed_s", "step_s", "mfu"))
    text = section(sample, layers=[], collectives=[], rewrites=[], **nothing)
    assert "estimated" not in text
    assert "<h3>Memory</h3>" in text
    assert "<h3>Layers" not in text
    assert "<h3>Collectives" not in text


def test_without_an_answer_the_command_is_named(sample):
    prose = Page(write_report(sample.write())).prose
    assert "Not compiled: jaxdist report digits --target CHIP:SHAPE." in prose


def test_an_answer_of_something_else_is_named(sample):
    folder = sample.write()
    sample.put("compiled.json", '{"a": 1}')
    with pytest.raises(BadInput, match=r"compiled\.json is damaged"):
        write_report(folder)


def test_the_answer_is_a_page_of_its_own(tmp_path):
    write_target_page(compiled(), tmp_path / "step.html")
    page = Page(tmp_path / "step.html")
    assert "Compiled for tpu-v5e:2x4" in page.prose
    assert "pipe 2 x data 2" in page.prose


def test_a_target_that_is_none_leaves_the_run_as_it_was(sample, capsys):
    folder = sample.write()
    assert main(["report", str(folder), "--target", "v100:1x8"]) == 2
    assert "chips are tpu-v4" in capsys.readouterr().err
    assert not (folder / "compiled.json").exists()
