"""A report of a run that was compared: each term drawn hollow and filled, in words too."""

import json

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.report import write_report


def numbers(name, predicted, measured, unit="s"):
    accurate = None if not measured else max(0, 1 - abs(predicted / measured - 1))
    return {
        "name": name,
        "unit": unit,
        "predicted": predicted,
        "measured": measured,
        "accurate": accurate,
    }


def cell(kind, stage, micro, start, end):
    return {"kind": kind, "stage": stage, "micro": micro, "start": start, "end": end}


LANES = [
    [cell("forward", 0, 0, 0.0, 0.01), cell("backward", 0, 0, 0.015, 0.02)],
    [cell("forward", 1, 0, 0.01, 0.012), cell("backward", 1, 0, 0.012, 0.015)],
]


@pytest.fixture
def compared(sample):
    sample.plan = Plan(mesh=MeshShape(pipe=2))
    sample.lock["values"]["optim.accumulate"] = {"value": 1, "by": "command line"}
    return {
        "cluster": "mine",
        "step": numbers("step", 0.03, sample.run.step_s),
        "interval_s": [0.025, 0.035],
        "inside_interval": False,
        "terms": [
            numbers("compute", 0.02, 0.025),
            numbers("activations, pipe", 0.01, 0.0114),
            numbers("memory", 1e6, 2e6, "B"),
        ],
        "layers": [numbers("stem.conv", 0.01, 0.02), numbers("", 0.0, 0.005)],
        "memory_by_term": {"parameters": 1000, "temporaries": 5000},
        "misses": [
            {
                "term": "compute",
                "seconds": 0.005,
                "likely_cause": "a <slow> core",
                "remedy": "another",
            }
        ],
        "watched": {
            "devices": [
                {"device": 0, "steps": 4, "step_s": 0.04, "terms_s": {"compute": 1}}
            ]
        },
        "pipeline": {"planned": LANES, "measured": [LANES[0], []]},
    }


def page(sample, compared):
    folder = sample.write()
    (folder / "compared.json").write_text(json.dumps(compared))
    return write_report(folder).read_text(encoding="utf-8").replace("&nbsp;", " ")


def section(text, name):
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_each_term_is_hollow_above_filled_with_its_numbers(sample, compared):
    text = section(page(sample, compared), "predicted")
    assert "The step took <b>36.4 ms</b>, predicted <b>30.0 ms</b> on mine" in text
    assert "outside the interval of 25.0 ms to 35.0 ms" in text
    for fill in ("backward", "pipe"):
        assert f'class="p t-{fill}"' in text
        assert f'class="m t-{fill}"' in text
    for said in ("20.00", "25.00", "+5.00", "80.0 %", "no layer", "4 profiled steps"):
        assert said in text
    assert "a &lt;slow&gt; core" in text
    assert 'class="miss"' in text


def test_memory_is_shown_by_term_beside_the_compiled_step(sample, compared):
    text = section(page(sample, compared), "memory")
    assert "temporaries" in text
    assert "compiled step" in text
    assert 'class="p t-forward"' in text


def test_a_pipeline_is_drawn_planned_over_measured(sample, compared):
    text = section(page(sample, compared), "pipeline")
    assert "1f1b, 2 stages, 1 microbatch: " in text
    assert "backward, stage 0, microbatch 0: 5.00 ms" in text
    assert text.count('class="p t-forward"') == 2
    assert text.count('class="m t-forward"') == 1
    assert "not watched" in text


def test_terms_that_nobody_watched_have_no_filled_bar(sample, compared):
    compared |= {"watched": None, "layers": [], "misses": [], "pipeline": None}
    compared["terms"][0]["measured"] = compared["terms"][0]["accurate"] = None
    text = section(page(sample, compared), "predicted")
    assert "not watched" in text
    assert "--profile" in text


def test_a_comparison_from_before_the_run_went_on_is_left_out(sample, compared):
    compared["step"]["measured"] = 1.0
    text = page(sample, compared)
    assert "Not compared: <code>jaxdist compare digits" in text
    assert "In seconds: <code>jaxdist compare" in section(text, "pipeline")
