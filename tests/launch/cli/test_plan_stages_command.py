"""`jaxdist plan stages`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.cli.main import main
from jaxdist.launch.config.plan_file import load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.pipeline.plan_schedule import plan_schedule

FILES = Path(__file__).parents[2] / "planner" / "stages" / "pipedream"
VGG = ("--profile", str(FILES / "vgg16.txt"))


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main(["plan", "stages", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def digits(capsys, tmp_path):
    assert main(["profile", "digits", "batch=8", "--json"]) == 0
    path = tmp_path / "digits.json"
    path.write_text(capsys.readouterr().out)
    return "--profile", str(path), "--flops-rate", "1e9"


def test_the_object_has_what_the_plan_costs(answer):
    words = (*VGG, "--workers", "8", "--bandwidth", "1.25e9", "--json")
    code, out, err = answer(*words)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["replicas"] == [7, 1]
    assert found["cuts"] == ["node26"]
    assert found["splits"] == [24, 40]
    assert found["stage_seconds"] == pytest.approx([0.0888743, 0.050415], rel=1e-5)
    assert found["speedup_over_one"] == pytest.approx(7.5673, abs=1e-4)
    assert found["speedup_over_data_parallel"] == pytest.approx(2.1795, abs=1e-4)
    assert found["bytes_over_data_parallel"] == pytest.approx(0.16016, abs=1e-5)
    assert found["in_flight"] == [2, 1]
    assert found["search_seconds"] > 0
    assert json.loads(answer(*words[:-2], "10gbit", "--json")[1])["replicas"] == [7, 1]


def test_the_finding_comes_first_and_no_line_of_the_table_is_wide(answer):
    code, out, _ = answer(*VGG, "--workers", "8", "--bandwidth", "10gbit")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "vgg16.txt on 8 devices, 10.0 Gbit/s: stages 7-1"
    assert "7.57 times one device, 2.18 times data parallel; predicted" in lines[2]
    assert any(row.split()[:3] == ["▸", "0", "node2"] for row in lines)
    table = out[: out.index("  try ")]
    assert max(map(len, table.splitlines()[6:])) <= 100


def test_the_commands_to_try_run(answer):
    _, out, _ = answer(*VGG, "--workers", "4", "--bandwidth", "10gbit")
    tries = [line.split("plan stages ")[1] for line in out.splitlines()[-2:]]
    assert tries[0].endswith("--cuts any")
    assert tries[1].endswith("--overlap 0")
    assert [answer(*one.split())[0] for one in tries] == [0, 0]


def test_levels_are_innermost_first(answer):
    words = ("--levels", "4,4", "--bandwidth", "12GB/s,10gbit", "--json")
    found = json.loads(answer(*VGG, "--workers", "16", *words)[1])
    assert found["config"].startswith("3x(4)-1x(")
    assert found["replicas"][0] == 12
    assert sum(found["replicas"]) == 16


def test_a_plan_of_ours_is_written_and_read_again(answer, digits, tmp_path):
    path = tmp_path / "plan.json"
    on = ("--workers", "3", "--bandwidth", "30mbit")
    code, out, err = answer(*digits, *on, "-o", str(path))
    assert (code, err) == (0, "")
    plan = Plan.from_json(path.read_text())
    assert plan.mesh.pipe == 3
    assert plan.pipe.replicas == (2, 1)
    assert plan.pipe.cuts == ("block3",)
    assert plan.pipe.schedule == "pipedream"
    words = out.split(f"train EXPERIMENT --plan {path} ")[1].splitlines()[0].split()
    assert words == ["optim.accumulate=12", "data.batch=96"]
    resolved = resolve_config("digits", (*load_plan_overrides(str(path)), *words))
    assert resolved.config.plan == plan
    assert plan_schedule(plan, 12).ticks


def test_one_stage_is_data_parallelism(answer, digits, tmp_path):
    path = tmp_path / "plan.json"
    answer(*digits, "--workers", "2", "--bandwidth", "100gbit", "-o", str(path))
    plan = Plan.from_json(path.read_text())
    assert (plan.mesh.pipe, plan.mesh.data) == (1, 2)


ON = ("--workers", "8", "--bandwidth", "10gbit")


def test_a_cluster_says_links_memory_and_speed(answer, digits):
    on = ("--cluster", "pipedream-b", "--workers", "8", "--json")
    found = json.loads(answer(*VGG, *on)[1])
    assert (found["config"], found["bandwidth"]) == ("7-1", [1.25e9])
    assert found["memory_limit"] == 16e9
    assert found["origins"]["times"] == "measured"
    assert found["origins"]["links"].startswith("published: PipeDream")
    ours = json.loads(answer(*digits[:2], *on)[1])
    times = "predicted for V100-SXM2-16GB in float32"
    assert ours["origins"]["times"] == times
    assert 0 < ours["seconds"] < 1e-3
    assert answer(*VGG, *on[:2], *on[-1:])[0] == 0  # all 16


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (ON, "no profile"),
        (("--profile", str(FILES / "vgg61.txt"), *ON), "did you mean"),
        (("--profile", str(FILES), *ON), "cannot be read"),
        ((*VGG, "--workers", "8"), "--bandwidth 10gbit"),
        ((*VGG, "--bandwidth", "10gbit"), "--workers 16"),
        ((*VGG, "--workers", "0", "--bandwidth", "10gbit"), "--workers 1"),
        ((*VGG, "--workers", "8", "--bandwidth", "10gb"), "no such quantity"),
        ((*VGG, "--workers", "8", "--bandwidth", "0"), "no link has 0"),
        ((*VGG, "--workers", "8", "--bandwidth", "1e9,1e9"), "2 bandwidths, 1 level"),
        ((*VGG, *ON, "--levels", "4,4"), "--levels 4,2"),
        ((*VGG, *ON, "--levels", "4,x"), "not numbers"),
        ((*VGG, *ON, "--overlap", "1.5"), "--overlap 1"),
        ((*VGG, *ON, "--overlap", "nan"), "--overlap 1"),
        (
            (*VGG, *ON, "--overlap", "0.5", "--cost-convention", "sum"),
            "overlap of its own",
        ),
        ((*VGG, *ON, "--cost-convention", "summ"), "did you mean sum?"),
        ((*VGG, *ON, "--cuts", "anny"), "did you mean any?"),
        ((*VGG, *ON, "--memory", "16 apples"), "no such quantity"),
        ((*VGG, *ON, "--memory", "1GB"), "out of memory by"),
        ((*VGG, *ON, "--memory", "0"), "--memory"),
        ((*VGG, *ON, "--memory-model", "upstream"), "--memory 16GB"),
        ((*VGG, *ON, "--flops-rate", "1e12"), "have seconds"),
        ((*VGG, *ON, "-o", "plan.json"), "-o writes a plan"),
        ((*VGG, *ON, "-o", "none/plan.json"), "no folder none"),
        ((*VGG, "--workers", "64", "--bandwidth", "1e9", "--straight"), "--workers 40"),
        ((*VGG, "--workers", "30000", "--bandwidth", "1e9"), "--levels 8,64"),
        ((*VGG, *ON, "--cluster", "pipedream-b"), "no --bandwidth"),
        ((*VGG, "--cluster", "pipedream-c"), "did you mean pipedream-"),
        ((*VGG, "--cluster", "pipedream-b", "--workers", "17"), "16 devices"),
        ((*VGG, "--cluster", "dgx-a100", "--workers", "12"), "--workers 16"),
        ((*VGG, *ON, "--worker", "8"), "did you mean --workers?"),
    ],
)
def test_bad_input_is_answered_with_a_remedy(answer, words, says):
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert says in err


def test_the_memory_that_is_said_to_be_enough_is(answer):
    _, _, err = answer(*VGG, *ON, "--memory", "1GB")
    remedy = err.split("remedy   --memory ")[1].split()[0]
    assert answer(*VGG, *ON, "--memory", remedy)[0] == 0
    assert answer(*VGG, *ON, "--memory", str(0.97 * float(remedy)))[0] == 2


def test_the_next_command_has_the_options_that_were_given(answer, digits):
    code, out, err = answer(*digits, *ON, "--cost-convention", "sum")
    assert code == 0, err
    assert "--cost-convention sum" in out
    assert "--form" not in out


def option(name, seconds, per_microbatch, fixed, makers, readers):
    return {
        "id": name,
        "timePerSample": seconds,
        "parameterSize": 1e6,
        "memoryUsageA": per_microbatch,
        "memoryUsageB": fixed,
        "syncTimeFw": dict.fromkeys(makers, 0),
        "syncTimeBw": dict.fromkeys(readers, 0),
    }


@pytest.fixture
def piper(tmp_path):
    """Four nodes, of which the third takes no time, on one or two devices each."""
    nodes = []
    for n in range(4):
        seconds = 0.0 if n == 2 else 0.1
        ends = [str(n - 1)] * bool(n), [str(n + 1)] * (n < 3)
        ways = {
            str(t): [
                option("vanilla", seconds / t, 4e9 / t, 1e9 / t, *ends),
                option("recompute", 1.3 * seconds / t, 1e9 / t, 2e9 / t, *ends),
            ]
            for t in (1, 2)
        }
        nodes.append({"id": n, "name": f"layer {n}", "TMPCs": ways})
    tree = {
        "maxDevices": 4,
        "maxMemoryPerDevice": 8e9,
        "bandwidth": 1e9,
        "mbsInBatch": 16,
        "nodes": nodes,
        "edges": [
            {"sourceId": n, "destId": n + 1, "communicationCost": 1e6} for n in range(3)
        ],
    }
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(tree))
    return path, tree


def test_a_graph_of_pipers_is_planned_within_its_memory(answer, piper):
    path, tree = piper
    code, out, err = answer("--profile", str(path), "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["format"] == "piper"
    assert max(found["memory_bytes"]) <= found["memory_limit"] == 8e9
    assert found["seconds"] == max(found["stage_seconds"])
    used = sum(d * t for d, t in zip(found["replicas"], found["tensor"]))
    assert used == found["workers_used"] <= found["workers"] == 4
    names = [name for stage in found["stages"] for name in stage["nodes"]]
    assert names == ["0", "1", "2", "3"]
    # With room for all nothing that takes time is computed twice.
    wide = json.loads(answer("--profile", str(path), "--memory", "1e12", "--json")[1])
    chosen = [pair for s in wide["stages"] for pair in zip(s["nodes"], s["options"])]
    assert {option for name, option in chosen if name != "2"} == {"vanilla"}
    assert wide["seconds"] <= found["seconds"]
    shown = answer("--profile", str(path))[1]
    assert "vanilla" in shown
    assert "▸" in shown
    tries = [line.split("plan stages ")[1] for line in shown.splitlines()[-2:]]
    assert answer(*tries[0].split())[0] == 0
    # The file may be of a version with another name for its batch.
    tree["maxBatchSize"] = tree.pop("mbsInBatch")
    path.write_text(json.dumps(tree))
    assert json.loads(answer("--profile", str(path), "--json")[1])["microbatches"] == 16


def test_the_profile_may_stand_alone(answer, piper):
    alone = json.loads(answer(str(piper[0]), "--json")[1])
    named = json.loads(answer("--profile", str(piper[0]), "--json")[1])
    assert alone["stages"] == named["stages"]
    code, _, err = answer(str(piper[0]), *VGG)
    assert code == 2
    assert "two profiles" in err


def test_a_graph_of_pipers_that_fits_nowhere_says_what_would(answer, piper):
    words = "--profile", str(piper[0]), "--workers", "1"
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert "out of memory by" in err
    remedy = err.split("--memory ")[2].split()[0]
    assert answer(*words, "--memory", remedy)[0] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("bandwidth"), "no bandwidth"),
        (lambda t: t.update(maxDevices="ten"), "maxDevices"),
        (lambda t: t.update(maxDevices=0), "above 0"),
        (lambda t: t["nodes"][1].pop("id"), "node 1 has no id"),
        (lambda t: t["nodes"][1].update(TMPCs={}), "no option"),
        (lambda t: t["nodes"][1].update(TMPCs={"0": []}), "degree 0"),
        (lambda t: t["nodes"][1]["TMPCs"]["1"][0].pop("memoryUsageA"), "memoryUsageA"),
        (
            lambda t: t["nodes"][1]["TMPCs"]["1"][0]["syncTimeFw"].clear(),
            "does not have the node's edges",
        ),
        (lambda t: t["edges"].append(dict(t["edges"][0])), "there twice"),
        (lambda t: t["edges"][0].update(communicationCost=-1), "communicationCost"),
        (lambda t: t["nodes"].append(dict(t["nodes"][0])), "two nodes 0"),
    ],
)
def test_what_a_graph_of_pipers_lacks_is_named(answer, piper, change, says):
    path, tree = piper
    change(tree)
    path.write_text(json.dumps(tree))
    code, out, err = answer("--profile", str(path))
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    "words",
    [
        ("--cluster", "pipedream-b"),
        ("--levels", "2,2"),
        ("--straight",),
        ("--overlap", "0"),
        ("--cost-convention", "sum"),
        ("--flops-rate", "1e9"),
        ("-o", "stages.json"),
    ],
)
def test_options_of_other_profiles_are_refused(answer, piper, words, monkeypatch):
    monkeypatch.chdir(piper[0].parent)
    code, _, err = answer("--profile", str(piper[0]), *words)
    assert code == 2
    assert f"{words[0]} is not for Piper's graphs" in err
    assert not Path("stages.json").exists()


@pytest.mark.parametrize("text", ['{"layers": [1, 2]}', "[1, 2]", '{"model": '])
def test_no_remedy_writes_over_a_file_of_another_format(answer, tmp_path, text):
    path = tmp_path / "foreign.json"
    path.write_text(text)
    code, _, err = answer("--profile", str(path), *ON)
    assert code == 2
    assert "is no profile" in err
    assert "-o foreign.json" not in err
