"""A report of a run that was compared: each term drawn hollow and filled, in words too."""

import json

from jaxdist.launch.report import write_report


def page(sample, compared):
    folder = sample.write()
    (folder / "compared.json").write_text(json.dumps(compared))
    return write_report(folder).read_text(encoding="utf-8").replace("&nbsp;", " ")


def section(text, name):
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_each_term_is_hollow_above_filled_with_its_numbers(sample, compared):
    text = section(page(sample, compared), "predicted")
    assert (
        "The step took <b>36.4 ms</b>; <b>30.0 ms</b> was predicted for cluster mine"
        in text
    )
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
