"""`jaxdist plan` on hosts of several kinds: what it shows, writes and refuses."""

import json

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.cli.main import main

CLUSTER = {
    "origin": "given: a test",
    "levels": [{"name": "net", "size": 4, "alpha": "0.3 ms", "bandwidth": "1 gbit"}],
    "device": {
        **{"name": "CPU", "memory": "4 GB", "memory_bandwidth": "4 GB/s"},
        **{"flops": {"float32": "25 GFLOP/s"}, "efficiency": 0.5},
    },
}
SLOW = {**CLUSTER["device"], "name": "slow CPU", "flops": {"float32": "5 GFLOP/s"}}
GROUPS = [{"name": "new", "hosts": 2}, {"name": "old", "hosts": 2, "device": SLOW}]
WORDS = ("digits", "plan.mesh.pipe=2", "plan.mesh.data=2", "optim.accumulate=4")


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps({**CLUSTER, "host_groups": GROUPS}))
    return str(path)


def test_stages_are_shown_with_their_hosts_and_blocks(capsys, mixed):
    words = (*WORDS, "--cluster", mixed, "--devices", "4", "--top", "1")
    assert main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    _, stages = shown.split("hosts are counted")
    rows = [line.split() for line in stages.splitlines()]
    blocks = {row[1]: int(row[-1]) for row in rows if row[:1] in (["0"], ["1"])}
    assert blocks["new"] > blocks["old"]


def test_layouts_without_stages_say_what_they_stand_on(capsys, mixed):
    words = ("digits", "plan.mesh.data=4", "--cluster", mixed, "--devices", "4")
    assert main(["plan", *words, "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert "stands on new, old; a step waits for the slowest device" in shown


def test_the_order_is_in_the_plan_and_in_what_is_predicted_of_it(capsys, mixed, job):
    typed = (*WORDS, "plan.host_order=old", "--cluster", mixed, "--devices", "4")
    assert main(["plan", *typed, "--json", "-o", "plan.json"]) == 0
    first = json.loads(capsys.readouterr().out)["plans"][0]
    assert first["rank_host_groups"] == [["old"], ["new"]]
    assert Plan.from_json(json.dumps(first["plan"])).host_order == ("old",)
    words = ("digits", "--plan", "plan.json", "--cluster", mixed, "--json")
    assert main(["predict", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rank_host_groups"] == first["rank_host_groups"]
    assert found["step_s"] == pytest.approx(first["step_s"])
    # A run takes hosts as they come: the order is for whoever starts them.
    where = f"data.dir={job.data}", "run.name=ordered", "epochs=0.1"
    code, _, err = job.run("train", "digits", "--plan", "plan.json", *where)
    assert code == 0, err


def test_what_has_one_kind_refuses_several(capsys, mixed):
    words = ("--profile", "x.json", "--cluster", mixed, "--workers", "4")
    assert main(["plan", "stages", *words]) == 2
    assert "is for clusters of one kind" in capsys.readouterr().err
