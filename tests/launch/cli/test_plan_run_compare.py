"""Plan, run, compare: one command each, and every answer goes into the next."""

import json

import pytest

from jaxdist.core.plan import Plan
from jaxdist.core.step_breakdown import StepBreakdown
from jaxdist.launch.cli.main import main

WORDS = ("model.width=4", "data.batch=128", "epochs=1")
ON = ("--cluster", "cpu-fake")


@pytest.mark.slow  # docs/compare.md runs these commands
def test_a_plan_is_run_and_compared_term_by_term(job, tmp_path, capsys):
    plan, folder = tmp_path / "plan.json", tmp_path / "runs" / "planned"
    words = ("digits", *WORDS, *ON, "--devices", "2", "-o", str(plan))
    assert main(["plan", *words]) == 0
    where = (f"run.dir={folder.parent}", "run.name=planned", f"data.dir={job.data}")
    code, _, err = job.run(
        *("train", "digits", "--plan", plan, *WORDS, *where, "--profile", "steps=3:9"),
        JAX_NUM_CPU_DEVICES="2",
    )
    assert code == 0, err
    ran = Plan.from_json((folder / "plan.json").read_text())
    assert ran == Plan.from_json(plan.read_text())
    measured = StepBreakdown.from_json((folder / "measured.json").read_text())
    capsys.readouterr()
    assert main(["compare", str(folder), *ON, "--layers"]) == 0
    said = capsys.readouterr().out
    assert "likely cause" in said
    assert "profiled step" in said
    found = json.loads((folder / "compared.json").read_text())
    terms = [term for term in found["terms"] if term["unit"] == "s"]
    assert all(term["measured"] >= 0 for term in terms)
    whole = sum(term["measured"] for term in terms)
    assert whole == pytest.approx(found["step"]["measured"])
    assert len(found["misses"]) == 2
    assert {layer["name"] for layer in found["layers"]} >= {"stem.conv", "head.dense"}
    assert len(found["watched"]["devices"]) == len(measured.devices) == 2
    report = (folder / "report.html").read_text()
    assert "for cluster cpu-fake: " in report
    assert "The two largest misses" in report
