"""A run of replicas: interrupted in a period it is the same; scored, loaded, refused."""

import json
import shutil

import numpy as np
import pytest

import jaxdist
from jaxdist.launch.cli.main import main
from jaxdist.train.checkpoint import reader

pytestmark = pytest.mark.timeout(400)

SMALL = [
    *("data.context=16", "data.stride=None", "data.batch=8", "optim.lr=0.01"),
    *("model.depth=2", "model.heads=2", "model.kv_heads=1", "model.embed=16"),
    *("plan.mesh.data=2", "plan.mesh.replica=2"),
    *("plan.outer.sync_interval=6", "plan.outer.fragments=3"),
    *("checkpoint.every_steps=7", "checkpoint.keep=9", "epochs=1"),
]


@pytest.fixture(scope="module")
def begin(job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    (folder / "a.txt").write_text("abcdefghijklmnop" * 200)
    where = (f"data.path={folder / 'a.txt'}", f"run.dir={folder}")

    def run(name, *words):
        made = job.call(
            "train", "characters", *SMALL, *where, f"run.name={name}", *words
        )
        return folder / name, *made

    return run


@pytest.fixture(scope="module")
def whole(begin):
    folder, code, _, err = begin("whole")
    assert code == 0, err
    return folder


def leaves(folder, step):
    """Fingerprints of every array of a checkpoint."""
    notes = reader.read_manifest(folder / "checkpoints" / str(step))
    return {name: leaf.fingerprint for name, leaf in notes.leaves.items()}


def test_resumed_between_two_fragments_it_is_the_same_to_the_bit(begin, whole):
    last = max(reader.list_steps(whole / "checkpoints"))
    assert (last, 7 % 6) == (23, 1)
    again = whole.with_name("again")
    shutil.copytree(whole, again)
    for step in reader.list_steps(again / "checkpoints"):
        if step > 7:
            shutil.rmtree(again / "checkpoints" / str(step))
    _, code, out, err = begin("again")
    assert code == 0, err
    assert "resumed at step 7" in " ".join(out.split())
    want = leaves(whole, last)
    assert leaves(again, last) == want
    kinds = {name.split("/")[1] for name in want if name.startswith("replicas/")}
    assert kinds == {"params", "opt", "velocity"}


@pytest.mark.slow
def test_what_replicas_have_not_sent_survives_a_restart(begin):
    words = [
        *("plan.outer.compressor=chunked_top_k", "plan.outer.learning_rate=1"),
        *("plan.outer.momentum=0", "plan.outer.fragments=1", "epochs=0.6"),
        "plan.mesh.data=1",
    ]
    folder, code, _, err = begin("sparse", *words)
    assert code == 0, err
    last = max(reader.list_steps(folder / "checkpoints"))
    want = leaves(folder, last)
    kinds = {name.split("/")[1] for name in want if name.startswith("replicas/")}
    assert kinds == {"params", "opt", "outer_feedback"}
    curve = (folder / "metrics.jsonl").read_text().splitlines()
    for step in reader.list_steps(folder / "checkpoints"):
        if step > 7:
            shutil.rmtree(folder / "checkpoints" / str(step))
    _, code, out, err = begin("sparse", *words)
    assert code == 0, err
    assert "resumed at step 7" in " ".join(out.split())
    assert leaves(folder, last) == want
    again = (folder / "metrics.jsonl").read_text().splitlines()
    losses = [
        {row["step"]: row["loss"] for row in map(json.loads, rows) if "loss" in row}
        for rows in (curve, again)
    ]
    assert losses[0] == losses[1]
    assert max(losses[0]) > 7


def test_what_is_scored_and_loaded_are_the_outer_parameters(job, whole):
    code, out, err = job.call("eval", whole, "--json")
    assert code == 0, err
    scored, summary = json.loads(out), json.loads((whole / "summary.json").read_text())
    assert scored["correct"] == summary["correct"]
    assert scored["loss"] == pytest.approx(summary["loss"], rel=1e-6)
    network, state = jaxdist.load(whole)
    assert (state.opt, state.replicas) == (None, None)
    logits = network(np.zeros((1, 16), np.int32))
    assert logits.shape[:2] == (1, 16)


def test_it_says_which_steps_are_behind_the_last_outer_step(begin):
    _, code, out, err = begin("short", "epochs=0.35")
    assert code == 0, err
    assert "2 steps behind the last outer step" in " ".join((out + err).split())


@pytest.mark.parametrize(
    "word",
    ["plan.mesh.replica=4", "plan.outer.sync_interval=7", "plan.outer.fragments=2"],
)
def test_a_resume_keeps_its_replicas_and_their_outer_loop(begin, whole, word):
    _, code, _, err = begin("whole", word)
    assert code == 2
    assert f"another {word.split('=')[0]}" in err


def test_audit_and_bytes_show_steps_and_outer_steps(whole, capsys):
    words = ["characters", *SMALL, f"data.path={whole.parent / 'a.txt'}", "--json"]
    assert main(["audit", *words]) == 0
    audited = json.loads(capsys.readouterr().out)
    assert audited["equal"]
    assert [step["after"] for step in audited["outer_steps"]] == [2, 4, 6]
    assert {row["axes"][0] for row in audited["collectives"]} == {"data"}
    assert main(["bytes", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    tables = [found, *found["outer_steps"]]
    assert all(len(set(each["total"].values())) == 1 for each in tables)
    outer = sum(each["total"]["compiled"] for each in found["outer_steps"])
    assert found["mean"]["compiled"] == found["total"]["compiled"] + outer / 6
    assert main(["bytes", *words[:-1]]) == 0
    assert "outer step, after step 4 of every 6" in capsys.readouterr().out


def test_hosts_in_a_box_do_not_count_what_comes_between_steps(whole, capsys):
    words = ["characters", *SMALL, f"data.path={whole.parent / 'a.txt'}", "--wire"]
    assert main(["bytes", *words]) == 2
    assert "replicas do not talk in one" in capsys.readouterr().err
