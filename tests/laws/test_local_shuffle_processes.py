"""Law 6 with samples that hosts keep: the run without them, to the bit."""

import json

import numpy as np
import pytest

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

HOSTS, BATCH = 4, 128
WORDS = (
    *("model.width=4", "data.shift=1", f"data.batch={BATCH}", "epochs=2.5"),
    *("precision=float64", "plan.mesh.data=4", "plan.mesh.spatial_h=1"),
    *("plan.shuffle.exchange_fraction=0.25", "plan.shuffle.partitions=16"),
)
KINDS = {
    "none": (),
    "peers": ("data.cache=memory", "data.exchange=peers"),
    "origin": ("data.cache=disk", "data.exchange=origin"),
}


def trained(job, folder, kind):
    """A run of 4 processes: its folder, and what it said."""
    own = (f"data.cache_dir={folder / 'disk'}",) if kind == "origin" else ()
    words = f"run.dir={folder}", f"run.name={kind}", f"data.dir={job.data}"
    how = "-n", HOSTS, "--devices-per-process", 1, "--", "train", "digits"
    asked = (*words, *WORDS, *KINDS[kind], *own)
    code, out, err = job.run("launch", "local", *how, *asked)
    assert code == 0, err
    return folder / kind, out


@pytest.fixture(scope="module")
def plain(job, tmp_path_factory):
    """The run whose hosts keep nothing."""
    return trained(job, tmp_path_factory.mktemp("plain"), "none")[0]


@pytest.fixture(
    scope="module", params=["peers", pytest.param("origin", marks=pytest.mark.slow)]
)
def kept(job, request, tmp_path_factory):
    """One whose hosts keep their samples."""
    found = trained(job, tmp_path_factory.mktemp("kept"), request.param)
    return request.param, *found


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return np.array([row["loss"] for row in rows if row["kind"] == "train"])


def test_samples_that_are_kept_change_nothing(job, plain, kept):
    folder = kept[1]
    assert len(losses(folder)) == 29
    assert losses(folder).tolist() == losses(plain).tolist()
    assert job.hash(folder) == job.hash(plain)


def test_each_host_holds_its_share_and_little_more(kept):
    said = json.loads((kept[1] / "summary.json").read_text())["exchange"]
    assert said["share"] in (359, 360, 361)
    assert said["share"] <= said["peak"] <= said["share"] + 2 * BATCH // HOSTS
    assert said["filled"] == said["share"]
    moved = said["from_peers"] + said["from_origin"]
    assert moved == said["exchanged"] > 100
    brought = said["from_peers"] if kept[0] == "peers" else said["from_origin"]
    assert brought > 0.5 * moved
    assert (said["bad"], said["without_room"]) == (0, 0)


def test_the_terminal_says_where_samples_are(kept):
    words = {"peers": "in memory, brought by peers", "origin": "on disk, brought by"}
    said = " ".join(kept[2].replace("r00 │", "").split())
    assert f"; kept {words[kept[0]]}" in said
