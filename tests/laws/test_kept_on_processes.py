"""Law 6 with samples that hosts keep: the run without them, to the bit."""

import json

import numpy as np
import pytest

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

HOSTS, BATCH = 4, 128
WORDS = (
    *("model.width=4", "data.shift=1", f"data.batch={BATCH}", "epochs=2.5"),
    *("precision=float64", "plan.mesh.data=4", "plan.mesh.spatial_h=1"),
    *("plan.shuffle.q=0.25", "plan.shuffle.partitions=16"),
)
KINDS = {
    "none": (),
    "peers": ("data.store=memory", "data.exchange=peers"),
    "origin": ("data.store=disk", "data.exchange=origin"),
}


@pytest.fixture(scope="module", params=["peers", "origin"])
def runs(job, request, tmp_path_factory):
    """A run whose hosts keep nothing, and one whose hosts keep their samples."""
    folder, found = tmp_path_factory.mktemp("kept"), {}
    for kind in ("none", request.param):
        own = (f"data.store_dir={folder / 'disk'}",) if kind == "origin" else ()
        words = f"run.dir={folder}", f"run.name={kind}", f"data.dir={job.data}"
        how = "-n", HOSTS, "--devices-per-process", 1, "--", "train", "digits"
        code, out, err = job.run(
            "launch", "local", *how, *words, *WORDS, *KINDS[kind], *own
        )
        assert code == 0, err
        found[kind] = folder / kind, out
    return request.param, found


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return np.array([row["loss"] for row in rows if row["kind"] == "train"])


def test_samples_that_are_kept_change_nothing(job, runs):
    kind, found = runs
    with_, without = found[kind][0], found["none"][0]
    assert len(losses(with_)) == 29
    assert losses(with_).tolist() == losses(without).tolist()
    assert job.hash(with_) == job.hash(without)


def test_each_host_holds_its_share_and_little_more(runs):
    kind, found = runs
    said = json.loads((found[kind][0] / "summary.json").read_text())["exchange"]
    assert said["share"] in (359, 360, 361)
    assert said["share"] < said["peak"] <= said["share"] + 2 * BATCH // HOSTS
    assert said["filled"] == said["share"]
    moved = said["from_peers"] + said["from_origin"]
    assert moved == said["exchanged"] > 100
    brought = said["from_peers"] if kind == "peers" else said["from_origin"]
    assert brought > 0.9 * moved
    assert (said["bad"], said["without_room"]) == (0, 0)


def test_the_terminal_says_where_samples_are(runs):
    kind, found = runs
    words = {"peers": "in memory, brought by peers", "origin": "on disk, brought by"}
    assert f"; kept {words[kind]}" in " ".join(found[kind][1].split())
