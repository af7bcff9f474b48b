"""A run on a text file: trained, evaluated, and asked to go on with a text."""

import json

import pytest

LETTERS = "abcdefghijklmnop"
SMALL = [
    *("data.context=16", "data.stride=None", "data.batch=8", "optim.lr=0.01"),
    *("model.depth=1", "model.heads=2", "model.kv_heads=1", "model.embed=16"),
]


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """The folder of a run on an alphabet that repeats, and its summary."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text(LETTERS * 200)
    words = [*SMALL, f"data.path={folder / 'a.txt'}", "epochs=12", f"run.dir={folder}"]
    code, out, err = job.call("train", "characters", *words, "--json")
    assert code == 0, err
    return folder / "characters", json.loads(out)


def ask(job, run, *words):
    code, out, err = job.call("generate", run, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_tokens_are_counted_one_by_one(trained):
    _, summary = trained
    assert (summary["held_out"], summary["answers"]) == (19, 19 * 16)
    assert summary["accuracy"] == summary["correct"] / summary["answers"]
    assert summary["accuracy"] > 0.9
    assert summary["loss"] < 0.5


def test_eval_scores_the_same(job, trained):
    run, summary = trained
    code, out, err = job.call("eval", run, "--json")
    assert code == 0, err
    score = json.loads(out)
    assert (score["correct"], score["samples"]) == (summary["correct"], 19)


def test_it_goes_on_with_the_alphabet(job, trained):
    found = ask(
        job, trained[0], "--prompt", "abcdefgh", "--tokens", "8", "--temperature", "0"
    )
    assert found["prompt"] == "abcdefgh"
    assert found["text"] == "ijklmnop"


def test_the_seed_decides(job, trained):
    words = ("--prompt", "a", "--temperature", "5", "--tokens", "20", "--seed")
    first, again, other = (ask(job, trained[0], *words, seed) for seed in (1, 1, 2))
    assert first["text"] == again["text"] != other["text"]
    assert len(first["text"]) == 20
    assert set(first["text"]) <= set(LETTERS)


def test_a_report_shows_how_held_out_text_goes_on(job, trained):
    code, _, err = job.call("report", trained[0])
    assert code == 0, err
    found = json.loads((trained[0] / "samples.json").read_text())
    first, last = found["texts"]
    assert len(first["prompt"]) == len(first["written"]) == 8
    assert (first["prompt"] + first["written"]) in LETTERS * 3
    assert set(last["generated"]) <= set(LETTERS)
    page = (trained[0] / "report.html").read_text()
    assert "perplexity" in page
    assert "tokens/s" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "aéz"], "unknown: 'z', 'é'"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a", "--tokens", "0"], "--tokens is at least 1"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature is at least 0"),
        (["--prompt", "a", "--checkpoint", "1"], "no checkpoint 1"),
    ],
)
def test_what_cannot_be_answered_is_bad_input(job, trained, words, said):
    code, out, err = job.call("generate", trained[0], *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_run_does_not_go_on_with_another_text(job, trained):
    """Refused before anything is written; the first file's run goes on."""
    run, _ = trained
    path = run.parent / "a.txt"
    words = [
        "train",
        "characters",
        *SMALL,
        f"data.path={path}",
        "epochs=13",
        "--change",
    ]
    words += [f"run.dir={run.parent}"]
    text = path.read_text()
    path.write_text(text.replace("abc", "cba"))
    code, _, err = job.call(*words)
    path.write_text(text)
    assert code == 2
    said = " ".join(err.split())
    assert "samples are not those that the run was started with" in said
    assert "run.name=NAME" in said


def test_a_batch_larger_than_the_samples_is_refused(job, tmp_path):
    words = ["data.batch=2048", f"data.dir={job.data}", f"run.dir={tmp_path}"]
    code, _, err = job.call("train", "digits", *words)
    assert code == 2
    assert "fewer training samples than a batch" in " ".join(err.split())
    assert "data.batch=1436" in err


def test_a_run_on_images_writes_no_text(job, tmp_path):
    words = [
        "epochs=0.05",
        "model.width=2",
        "plan.mesh.data=2",
        "plan.mesh.spatial_h=1",
        f"data.dir={job.data}",
        f"run.dir={tmp_path}",
    ]
    code, _, err = job.call("train", "digits", *words)
    assert code == 0, err
    code, out, err = job.call("generate", tmp_path / "digits", "--prompt", "a")
    assert (code, out) == (2, "")
    assert "digits writes no text" in err
    assert "digits trained resnet8" in err


def test_a_text_that_is_missing_leaves_no_run_behind(job, tmp_path):
    words = [f"data.path={tmp_path / 'none.txt'}", f"run.dir={tmp_path / 'runs'}"]
    code, out, err = job.call("train", "characters", *words)
    assert (code, out) == (2, "")
    assert "no text in" in err
    assert not (tmp_path / "runs").exists()
