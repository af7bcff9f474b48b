"""A run on clips: trained, evaluated, and asked what happens in a held-out clip."""

import json

import numpy as np
import pytest

SMALL = [
    *("data.name=clips", "data.batch=8", "optim.lr=0.02", "optim.warmup_epochs=1"),
    *("model.width=2", "model.embed=8", "model.hidden=16"),
]


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """The folder of a run on screens that are dark or light, and its summary."""
    folder = tmp_path_factory.mktemp("clips")
    light = np.arange(160) % 2
    clip = np.broadcast_to(light[:, None, None, None, None], (160, 3, 8, 8, 1)) * 255
    caption = np.where(light, "it is light now", "dark")
    path = folder / "a.npz"
    np.savez(path, clip=clip.astype(np.uint8), caption=caption)
    words = [*SMALL, f"data.path={path}", "epochs=6", f"run.dir={folder}"]
    code, out, err = job.call("train", "captions", *words, "--json")
    assert code == 0, err
    return folder / "captions", json.loads(out)


def ask(job, run, *words):
    code, out, err = job.call("generate", run, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_words_and_ends_are_counted_and_padding_is_not(trained):
    _, summary = trained
    # 16 held-out clips: 8 with four words, 8 with one, each with an end.
    assert (summary["held_out"], summary["answers"]) == (16, 8 * 5 + 8 * 2)
    assert summary["accuracy"] == summary["correct"] / summary["answers"]
    assert summary["accuracy"] > 0.95


def test_eval_scores_the_same(job, trained):
    run, summary = trained
    code, out, err = job.call("eval", run, "--json")
    assert code == 0, err
    score = json.loads(out)
    assert (score["correct"], score["answers"]) == (
        summary["correct"],
        summary["answers"],
    )


def test_it_says_what_it_sees_up_to_the_end(job, trained):
    light, dark = (ask(job, trained[0], "--prompt", n) for n in ("1", "2"))
    assert light["text"] == light["written"] == "it is light now"
    assert dark["text"] == dark["written"] == "dark"
    assert light["prompt"] == "1"
    short = ask(job, trained[0], "--prompt", "1", "--tokens", "2")
    assert short["text"] == "it is"


def test_people_read_both_captions(job, trained):
    code, out, err = job.call("generate", trained[0], "--prompt", "0")
    assert code == 0, err
    assert out.splitlines() == ["said     dark", "written  dark"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "16"], "clips 0 to 15"),
        (["--prompt", "light"], "no held-out clip light"),
        (["--prompt", "-1"], "--prompt"),
        (["--prompt", "0", "--temperature", "0.5"], "captions are not drawn"),
        (["--prompt", "0", "--tokens", "0"], "--tokens is at least 1"),
        (["--prompt", "0", "--checkpoint", "1"], "no checkpoint 1"),
    ],
)
def test_what_cannot_be_answered_is_bad_input(job, trained, words, said):
    code, out, err = job.call("generate", trained[0], *words)
    assert (code, out) == (2, "")
    assert said in err
