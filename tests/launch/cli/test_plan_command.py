"""`jaxdist plan EXPERIMENT`: ranked layouts, the plan it writes, and refusals."""

import json

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.config.plan_file import load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LOSSY_COMPRESSORS
from jaxdist.meshes.clusters.load import load_cluster


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
        (["digits", "--workers", "4"], "plan layouts takes no --workers"),
        (
            ["digits", "plan.mesh.data=8", "--cluster", "testbed", "--devices", "4"],
            "no part of the devices",
        ),
        (
            [
                "digits",
                "--compressors",
                "int9",
                "--cluster",
                "testbed",
                "--devices",
                "4",
            ],
            "did you mean int8",
        ),
        (
            [
                "digits",
                "--compressors",
                "ring",
                "--cluster",
                "testbed",
                "--devices",
                "4",
            ],
            "ring loses nothing",
        ),
        (
            [
                "explain",
                "digits",
                "--rank",
                "0",
                "--cluster",
                "testbed",
                "--devices",
                "4",
            ],
            "no plan is at that place",
        ),
        (["stages", "--devices", "4"], "takes no --devices"),
        (["stages", "--objective", "cost"], "takes no --objective"),
        (["digits", "--cluster", "testbed", "--devices", "2,5"], "too few devices"),
        (["digits", "--cluster", "testbed", "--devices", "2,0"], "--devices 2,0"),
        (["digits", "--cluster", "testbed", "--devices", "2;4"], "not numbers"),
        (
            ["digits", "--cluster", "testbed", "--devices", "4", "--objective", "cots"],
            "did you mean cost",
        ),
        (
            *(["digits", "--cluster", "testbed", "--devices=4", "--objective=budget"],),
            "no --samples",
        ),
        (
            ["digits", "--cluster", "testbed", "--devices", "4", "--samples=-1"],
            "at least 1",
        ),
        (
            ["digits", "--cluster=testbed", "--devices=4", "--samples=many"],
            "no number of",
        ),
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
    words = ("digits", *asked, "--compressors", "int8", "--cluster", "testbed")
    words = (*words, "--devices", "4", "-o", str(path), "--json", "--explain")
    # Where messages start for nothing, several microbatches are best.
    for number in ("bandwidth=100mbit", "alpha=1us"):
        words = (*words, "--what-if", f"levels.net.{number}")
    assert main(["plan", *words]) == 0
    shown = json.loads(capsys.readouterr().out)
    plan = Plan.from_json(path.read_text())
    assert (plan.mesh.pipe, plan.mesh.devices, plan.remat) == (2, 4, True)
    assert plan.pipe.schedule == "gpipe"
    assert plan.reduce.algorithm == "int8"
    config = resolve_config("digits", load_plan_overrides(str(path))).config
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
    assert {one["plan"]["reduce"]["algorithm"] for one in plans}.isdisjoint(
        LOSSY_COMPRESSORS
    )


PAIRS = """
name: pairs
origin: "given: a test"
device:
  name: one
  memory: 16 GB
  memory_bandwidth: 900 GB/s
  flops: {float32: 10 TFLOP/s}
  efficiency: 0.5
levels:
  - {name: host, size: 2, alpha: 1 us, bandwidth: 100 GB/s}
  - {name: room, size: 2, alpha: 20 us, bandwidth: 1 GB/s}
"""


def test_the_axis_that_needs_the_links_of_a_host_is_moved_into_it(
    capsys, job, tmp_path
):
    """As the plan file says it, unless a placement was typed."""
    cluster, path = tmp_path / "pairs.yaml", tmp_path / "plan.json"
    cluster.write_text(PAIRS)
    few = ("data.batch=8", "optim.accumulate=1", "model.width=4")
    words = ("digits", *few, "plan.mesh.data=2", "plan.mesh.tensor=2", "--json")
    words = (*words, "--cluster", str(cluster), "--devices", "4", "-o", str(path))
    assert main(["plan", *words]) == 0
    free = json.loads(capsys.readouterr().out)["plans"]
    plan = Plan.from_json(path.read_text())
    assert plan.inside == ("data",)
    bare = [{**one["plan"], "placement": []} for one in free]
    assert all(bare.count(one) == 1 for one in bare)
    assert main(["plan", *words[:-2], "plan.placement="]) == 0
    fixed = json.loads(capsys.readouterr().out)["plans"]
    assert {tuple(one["plan"]["placement"]) for one in fixed} == {()}
    assert free[0]["step_s"] < 0.9 * fixed[0]["step_s"]
    where = f"run.dir={tmp_path}", f"data.dir={job.data}", "run.name=placed"
    short = *few, "epochs=0.02", *where
    code, _, err = job.run("train", "digits", "--plan", path, *short)
    assert code == 0, err
    assert Plan.from_json((tmp_path / "placed" / "plan.json").read_text()) == plan


def test_a_plan_that_ends_its_split_of_images_is_written(capsys, tmp_path):
    """And is what a run takes; one that was typed stays as it is."""
    path = tmp_path / "plan.json"
    words = ("digits", "plan.mesh.spatial_h=4", "--cluster", "testbed", "--json")
    words = (*words, "--devices", "4", "-o", str(path), "--force")
    for more, block in ((), "block1"), (("plan.spatial_end=block3",), "block3"):
        assert main(["plan", *words, *more]) == 0
        first = json.loads(capsys.readouterr().out)["plans"][0]["plan"]
        assert (first["spatial_end"], first["spatial_end_mode"]) == (block, "samples")
        plan = Plan.from_json(path.read_text())
        config = resolve_config("digits", load_plan_overrides(str(path))).config
        assert config.plan == plan == Plan.from_json(json.dumps(first))


FEW = ("digits", "optim.accumulate=1", "plan.remat=false", "plan.mesh.spatial_h=1")
"""A space of a few plans."""


def planned(capsys, *words):
    assert main(["plan", *FEW, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_several_numbers_of_devices_are_ranked_together(capsys, tmp_path):
    path = tmp_path / "plan.json"
    alone = [planned(capsys, "--cluster=testbed", f"--devices={n}") for n in (2, 4)]
    assert [found["devices"] for found in alone] == [2, 4]
    assert "objective" not in alone[0]
    words = ("--cluster=testbed", "--devices=2,4,2", "--objective=cost", "--top=100")
    found = planned(capsys, *words, "-o", str(path), "--explain")
    assert found["devices"] == [2, 4]
    costs = [one["cost"] for one in found["plans"]]
    assert costs == sorted(costs)
    for one in found["plans"]:
        by_hand = one["devices"] * one["step_s"] / 3600 / 64
        assert one["cost"] == pytest.approx(by_hand)
        assert one["cost_unit"] == "device-hours a sample"
        assert "budget_s" not in one
    for each in alone:
        first = each["plans"][0]
        own = [p for p in found["plans"] if p["devices"] == each["devices"]]
        assert own[0]["plan"] == first["plan"]
        assert own[0]["step_s"] == pytest.approx(first["step_s"])
    first = found["plans"][0]
    assert Plan.from_json(path.read_text()) == Plan.from_json(json.dumps(first["plan"]))
    terms = {each["term"]: each["value"] for each in found["explained"]["seconds"]}
    assert terms["compute"] == first["terms_s"]["compute"]


def test_a_budget_of_samples_is_so_many_steps(capsys):
    words = ("--cluster=testbed", "--devices=4", "--top=2")
    found = planned(capsys, *words, "--samples=1000")
    assert (found["objective"], found["samples"]) == ("step", 1000)
    for one in found["plans"]:
        assert one["budget_s"] == pytest.approx(16 * one["step_s"])
        assert "cost" not in one
    assert (
        planned(capsys, *words, "--objective=budget", "--samples=1000")["plans"]
        == (found["plans"])
    )


def test_a_price_is_that_of_the_clusters_file(capsys, tmp_path):
    tree = json.loads(load_cluster("testbed").to_json())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tree | {"price": 3.6}))
    words = (f"--cluster={path}", "--devices=4", "--objective=cost", "--samples=1000")
    found = planned(capsys, *words, "--top=1")
    assert found["price"] == {"value": 3.6, "origin": "given: mine"}
    (one,) = found["plans"]
    assert one["cost"] == pytest.approx(3.6 * 4 * one["budget_s"] / 3600)
    assert one["cost_unit"] == "currency units"
    words = ("--cluster=testbed", *words[1:])
    asked = planned(capsys, *words, "--what-if", "price=7.2", "--top=1")
    assert asked["plans"][0]["cost"] == pytest.approx(2 * one["cost"])
    assert main(["plan", *FEW, *words, "--what-if", "price=0"]) == 2
    assert "price of 0" in capsys.readouterr().err


def test_what_is_ordered_by_is_shown(capsys):
    words = ("plan", *FEW, "--cluster=testbed", "--devices=2,4", "--samples=90e6")
    assert main([*words, "--objective=cost", "--top=3"]) == 0
    out = capsys.readouterr().out
    assert "ordered by cost of 90,000,000 samples, device-hours" in out
    assert "testbed has no price" in out
    for head in ("devices", "device-h", "hours"):
        assert head in out
    assert (
        "--devices 2,4 --objective cost --samples 90000000 --first 4 -o plan.json"
        in (" ".join(out.split()))
    )


def test_what_was_typed_is_in_the_command_that_writes_the_plan(capsys):
    words = ("--cluster=testbed", "--devices=2", "--memory=1GB", "--compressors=int8")
    changed = ("--what-if", "levels.net.bandwidth=1gbit")
    assert main(["plan", *FEW, *words, *changed, "--top=1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    asked = "--what-if levels.net.bandwidth=1gbit --memory 1GB --compressors int8"
    assert f"--devices 2 {asked} --first 4 -o plan.json" in out


def test_a_number_of_devices_without_a_layout_is_no_end(capsys):
    """It is named among what lost; where no number has one that is the answer."""
    words = ("--cluster=testbed", "plan.mesh.pipe=1", "plan.mesh.tensor=1", "--top=1")
    found = planned(capsys, *words, "--devices=3,4")
    assert [one["devices"] for one in found["plans"]] == [4]
    lost = {one["layout"]: one for one in found["lost"]}
    assert lost["all of 3 devices"]["why"]
    assert main(["plan", *FEW, *words, "--devices=3"]) == 2
    assert "no layout can be run" in capsys.readouterr().err
