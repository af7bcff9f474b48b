"""`predict --chakra` and `simulate traces`: a step goes out, and comes in again."""

import json

import pytest

from jaxdist.launch.cli.main import main

STEP = ("predict", "digits", "plan.mesh.data=2", "plan.mesh.spatial_h=2")


@pytest.fixture
def folder(tmp_path, capsys):
    where = tmp_path / "traces"
    asked = (*STEP, "--cluster", "testbed", "--chakra", str(where))
    assert main([*asked]) == 0
    said = capsys.readouterr().out
    assert f"4 ranks in {where}" in said
    assert "jaxdist simulate traces" in said
    return where


def test_a_predicted_step_is_replayed(folder, capsys):
    assert sorted(path.name for path in folder.glob("*.et")) == [
        f"step.{rank}.et" for rank in range(4)
    ]
    words = ("simulate", "traces", str(folder), "--topology", "star")
    assert main([*words, "bandwidth=1gbit", "--json"]) == 0
    slow = json.loads(capsys.readouterr().out)
    assert main([*words, "--json", "--algorithm", "ring"]) == 0
    fast = json.loads(capsys.readouterr().out)
    assert slow["ranks"] == 4
    assert slow["compute_s"] == fast["compute_s"] < fast["seconds"] < slow["seconds"]
    kinds = {one["kind"] for one in fast["collectives"]}
    assert kinds == {"all-reduce", "message"}
    assert main([*words]) == 0
    said = capsys.readouterr().out
    assert "until the last rank is done" in said
    assert "--algorithm ring" in said


def test_what_cannot_be_replayed_is_refused(folder, capsys):
    asked = (*STEP, "--cluster", "testbed", "--chakra", str(folder))
    assert main([*asked]) == 2
    assert "has traces already" in capsys.readouterr().err
    (folder / "step.2.et").unlink()
    assert main(["simulate", "traces", str(folder)]) == 2
    assert "lacks 1 of 4 ranks" in capsys.readouterr().err
    assert main(["simulate", "traces", str(folder.parent)]) == 2
    assert "no folder of one execution trace" in capsys.readouterr().err
    assert main(["simulate", "traces", str(folder), "--mib", "64"]) == 2
    assert "jaxdist simulate allreduce takes it" in capsys.readouterr().err
