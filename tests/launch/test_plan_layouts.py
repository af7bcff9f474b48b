"""`jaxdist plan EXPERIMENT`: ranked layouts, the plan it writes, and refusals."""

import json

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.cli import main
from jaxdist.launch.plan.question import LOSSY
from jaxdist.launch.planfile import plan_words
from jaxdist.launch.resolve import resolve


def test_the_first_layout_is_the_plan_that_is_written(capsys, tmp_path):
    path = tmp_path / "plan.json"
    words = ("digits", "--cluster", "testbed", "--devices", "4", "--top", "3")
    assert main(["plan", *words, "--json", "-o", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["plans"]) == 3
    first = found["plans"][0]
    assert Plan.from_json(path.read_text()) == Plan.from_json(json.dumps(first["plan"]))
    assert first["step_s"] == pytest.approx(sum(first["terms_s"].values()))
    assert first["memory_bytes"] > 0
    assert found["search_seconds"] > 0


def test_a_layout_that_only_layers_say_fits_is_not_the_first(capsys):
    """Where memory is short the first one is traced, and struck if it needs more."""
    words = ("digits", "optim.accumulate=1", "plan.remat=false", "--json")
    words = (*words, "--cluster", "testbed", "--devices", "2")
    firsts = []
    for more in ((), ("--memory", "20MB")):
        assert main(["plan", *words, *more]) == 0
        firsts.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert "temporaries" not in firsts[0]["memory_by_term"]
    assert firsts[1]["memory_by_term"]["temporaries"] < firsts[1]["memory_bytes"] < 20e6
    least = firsts[0]["memory_bytes"]
    assert main(["plan", *words, "--memory", f"{1.1 * least:.0f}B"]) == 2
    assert "out of memory by" in capsys.readouterr().err


def test_a_faster_link_is_asked_about_and_named(capsys):
    words = ("digits", "--cluster", "testbed", "--devices", "2", "--json")
    steps = []
    for more in ((), ("--what-if", "levels.net.bandwidth=10gbit")):
        assert main(["plan", *words, *more]) == 0
        steps.append(json.loads(capsys.readouterr().out)["plans"][0])
    assert steps[1]["step_s"] < steps[0]["step_s"]
    assert "what if" in steps[1]["origins"]["levels.net.bandwidth"]
    for word, said in (
        ("levels.net.bandwith=1gbit", "did you mean levels.net.bandwidth"),
        ("levels.net.bandwidth=1GHz", "no such quantity"),
        ("levels.net.bandwidth", "changes nothing"),
    ):
        assert main(["plan", *words[:5], "--what-if", word]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits", "--devices", "4"], "on which machine"),
        (["digits", "--cluster", "testbed"], "on how many devices"),
        (["digits", "--cluster", "testbed", "--devices", "5"], "too few devices"),
        (["digits", "--cluster", "testbed", "--devices", "0"], "no devices"),
        (["digitz", "--cluster", "testbed", "--devices", "4"], "did you mean digits"),
        (["digits", "--workers", "4"], "takes no workers"),
        (
            ["digits", "plan.mesh.data=8", "--cluster", "testbed", "--devices", "4"],
            "no part of the devices",
        ),
        (
            ["digits", "--lossy", "int9", "--cluster", "testbed", "--devices", "4"],
            "did you mean int8",
        ),
        (
            ["digits", "--lossy", "ring", "--cluster", "testbed", "--devices", "4"],
            "ring loses nothing",
        ),
        (
            ["digits", "--explain", "0", "--cluster", "testbed", "--devices", "4"],
            "no plan is at that place",
        ),
        (["stages", "--devices", "4"], "takes no devices"),
        (
            ["digits", "--cluster", "testbed", "--devices", "4", "--memory", "1kB"],
            "the smallest needs",
        ),
    ],
)
def test_questions_without_an_answer_are_refused(capsys, words, said):
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_what_was_planned_is_what_a_plan_file_says(capsys, tmp_path):
    """Microbatches, schedule, remat and a packed sum are in the file, or refused."""
    path = tmp_path / "plan.json"
    asked = ("plan.mesh.pipe=2", "plan.pipe.schedule=gpipe", "plan.remat=true")
    words = ("digits", *asked, "--lossy", "int8", "--cluster", "testbed")
    words = (*words, "--devices", "4", "-o", str(path), "--json", "--explain")
    # Where messages start for nothing, several microbatches are best.
    for number in ("bandwidth=100mbit", "alpha=1us"):
        words = (*words, "--what-if", f"levels.net.{number}")
    assert main(["plan", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    plan = Plan.from_json(path.read_text())
    assert (plan.mesh.pipe, plan.mesh.devices, plan.remat) == (2, 4, True)
    assert plan.pipe.schedule == "gpipe"
    assert plan.reduce.via == "int8"
    config = resolve("digits", plan_words(str(path))).config
    assert config.plan == plan
    assert config.optim.accumulate == plan.microbatches > 1
    terms = {each["term"]: each["value"] for each in shown["explained"]["seconds"]}
    assert terms["compute"] == shown["plans"][0]["terms_s"]["compute"]
    told = ["--plan", str(path), "optim.accumulate=1"]
    assert main(["train", "digits", *told]) == 2
    assert f"optim.accumulate={plan.microbatches}" in capsys.readouterr().err


def test_nothing_is_packed_that_was_not_asked_for(capsys):
    words = ("digits", "optim.accumulate=1", "--cluster", "testbed", "--devices", "4")
    slow = ("--what-if", "levels.net.bandwidth=1mbit", "--json")
    assert main(["plan", *words, *slow]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {one["plan"]["reduce"]["via"] for one in plans}.isdisjoint(LOSSY)


def test_a_plan_that_ends_its_split_of_images_is_written(capsys, tmp_path):
    """And is what a run takes; one that was typed stays as it is."""
    path = tmp_path / "plan.json"
    words = ("digits", "plan.mesh.spatial_h=4", "--cluster", "testbed", "--json")
    words = (*words, "--devices", "4", "-o", str(path))
    for more, block in ((), "block1"), (("plan.spatial_until=block3",), "block3"):
        assert main(["plan", *words, *more]) == 0
        first = json.loads(capsys.readouterr().out)["plans"][0]["plan"]
        assert (first["spatial_until"], first["spatial_then"]) == (block, "samples")
        plan = Plan.from_json(path.read_text())
        config = resolve("digits", plan_words(str(path))).config
        assert config.plan == plan == Plan.from_json(json.dumps(first))
