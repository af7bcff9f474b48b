"""A run on crops: evaluated by windows while it trains, afterwards, and resumed."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from volume_files import write_npy_files

from jaxdist.core.errors import BadInput
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.evaluate import make_evaluator
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import make_job

CROPS = [
    *("train", "unet2d", "model.size=tiny", "data.samples=16", "data.size=24"),
    *("data.augment=crop:8,flip,rotate90,noise:0.1", "data.batch=4", "--json"),
    *("plan.mesh.data=2", "plan.mesh.spatial_h=2", "precision=float64"),
    # Without it the rate would follow from how many epochs are asked for.
    *("optim.milestones=100", "optim.warmup_epochs=0"),
]


@pytest.fixture(scope="module")
def run(job, tmp_path_factory):
    """Folder of a run, with a row of losses a step."""
    folder = tmp_path_factory.mktemp("windows")
    code, _, err = job.call(*CROPS, "epochs=1", f"run.dir={folder}", "run.name=crops")
    assert code == 0, err
    return folder / "crops"


def score(job, run, *words):
    code, out, err = job.call("eval", run, "--json", *words)
    assert code == 0, err
    return json.loads(out)


def losses(job, run):
    return [row["loss"] for row in job.lines(run / "metrics.jsonl") if "loss" in row]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resumption_and_processes_see_the_same_samples(job, tmp_path):
    for name, stops in (("whole", [2]), ("parts", [1, 2])):
        for stop in stops:
            words = [f"epochs={stop}", f"run.dir={tmp_path}", f"run.name={name}"]
            # What goes on lies on other devices.
            if name == "parts" and stop == 2:
                words += ["plan.mesh.data=4", "plan.mesh.spatial_h=1", "--change"]
            code, _, err = job.call(*CROPS, *words)
            assert code == 0, err
    # Training and evaluation: each process cuts the windows that its devices have.
    how = "-n", 2, "--devices-per-process", 2, "--", sys.executable, "-m", "jaxdist"
    words = ["epochs=2", f"run.dir={tmp_path}", "run.name=two"]
    code, _, err = job.run("launch", "local", *how, *CROPS, *words)
    assert code == 0, err
    want = losses(job, tmp_path / "whole")
    for name in ("parts", "two"):
        assert losses(job, tmp_path / name) == pytest.approx(want, rel=1e-9)


def test_windows_are_the_crop_unless_others_are_asked_for(job, run):
    own = score(job, run)
    # 24 rows in windows of 8 that overlap by half: 5 along each dim, of 2 images.
    assert own["windows"] == 2 * 5**2
    assert own["answers"] == 2 * 24**2
    last = job.lines(run / "metrics.jsonl")[-1]
    assert last["mean_dice"] == pytest.approx(own["mean_dice"], rel=1e-12)
    wide = score(job, run, "--window", "16x16", "--overlap", "0.5")
    assert wide["windows"] == 2 * 2**2
    assert wide["device_bytes"] > own["device_bytes"]
    assert wide["mean_dice"] != own["mean_dice"]
    # One window of the whole image is the image.
    assert score(job, run, "--window", "24")["windows"] == 2


@pytest.mark.timeout(300)
def test_stages_are_scored_alike(job, run, tmp_path):
    words = ["plan.mesh.pipe=2", "plan.mesh.spatial_h=1", f"run.dir={tmp_path}"]
    code, _, err = job.call(*CROPS, *words, "epochs=1", "run.name=stages")
    assert code == 0, err
    for name in ("loss", "mean_dice", "answers"):
        want, got = (
            job.lines(folder / "metrics.jsonl")[-1][name]
            for folder in (run, tmp_path / "stages")
        )
        assert got == pytest.approx(want, rel=1e-9)


def test_windows_are_seen_by_the_stages_of_the_run():
    words = ["model.size=tiny", "data.samples=16", "data.size=24", "data.batch=4"]
    words += ["data.augment=crop:8", "plan.mesh.data=2", "plan.mesh.pipe=2"]
    config = resolve_config("unet2d", words).config
    train, test = open_data(config.data, feature_spec(config))
    job = make_job(config, config.plan, train)
    config = replace(config, data=replace(config.data, eval_window=(16, 16)))
    found = make_evaluator(replace(job, config=config), test).layout
    assert found.batch_shapes["image"].shape[1:3] == (16, 16)
    assert not job.plan.pipe.cuts
    assert found.plan.pipe.cuts == (job.layout.slot_layout.stages.blocks[1][0],)
    assert found.slot_layout.stages == job.layout.slot_layout.stages


def test_the_text_says_how_much_memory_windows_took(job, run):
    code, out, _ = job.call("eval", run, "--blend", "constant")
    assert code == 0
    assert "mean_dice" in out
    assert "50 windows 8 x 8, overlap 0.5, constant" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--window", "x"], "--window 64,64,64"),
        (["--window", "8,8,8"], "data.eval_window=64,64"),
        (["--overlap", "1"], "below 1"),
        (["--window", "6"], "cannot be halved"),
    ],
)
def test_windows_that_cannot_be_are_refused(job, run, words, said):
    code, _, err = job.call("eval", run, *words)
    assert code == 2
    assert said in err


def test_a_report_shows_masks_answers_and_errors(job, run):
    code, _, err = job.call("report", run)
    assert code == 0, err
    found = json.loads((run / "samples.json").read_text())
    assert found["reason"] == ""
    # The same windows on one device: the same counts, and so the same scores.
    scored = score(job, run)
    dice = {
        f"dice_{x['label']}": 2 * x["both"] / (x["mask"] + x["answer"])
        for x in found["overlaps"]
    }
    assert dice == pytest.approx({k: v for k, v in scored.items() if k in dice})
    assert set(dice) == {k for k in scored if k.startswith("dice_")}
    assert sum(each["mask"] for each in found["overlaps"]) == scored["answers"]
    assert len(found["masks"]) == scored["samples"] == 2
    worst = [each["dice"] for each in found["masks"]]
    assert worst == sorted(worst)
    page = (run / "report.html").read_text()
    assert page.count("<figcaption>errors</figcaption>") == 2
    for each in found["masks"]:
        for key in ("picture", "mask", "answer", "errors"):
            assert each[key] in page


class Whole:
    """A source of one's own, which reads samples whole."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def get(self, ids):
        return self.source.get(ids)


def test_each_plane_is_read_once(tmp_path):
    draw = np.random.default_rng(0)
    arrays = {
        "image": draw.random((3, 40, 24, 1)).astype(np.float32),
        "mask": draw.integers(0, 2, (3, 40, 24), np.uint8),
    }
    data = write_npy_files(tmp_path / "scans", {"train": arrays, "test": arrays})
    words = ["model.size=tiny", "model.classes=2", "data.batch=2", f"data.name={data}"]
    config = resolve_config("unet2d", [*words, "data.augment=crop:16"]).config
    train, test = open_data(config.data)
    job = make_job(config, config.plan, train)
    evaluate, state = make_evaluator(job, test), job.layout.init_state()
    before = test.bytes_read
    scored = evaluate(state)
    assert test.bytes_read - before == sum(array.nbytes for array in arrays.values())
    assert evaluate.windows == 3 * 4 * 2
    # Of a batch of two windows, which begin at one row.
    assert evaluate.plane_bytes == 16 * 24 * (1 + 2) * 4
    assert make_evaluator(job, Whole(test))(state) == scored

    # What a file holds is held against the classes, and named.
    np.save(tmp_path / "scans/test/mask/case1.npy", arrays["mask"][1] + 9)
    with pytest.raises(BadInput, match=r"case1\.npy"):
        evaluate(state)
