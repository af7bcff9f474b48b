"""A run on documents: prepared, trained, scored in bits a byte, asked for more text."""

import json
import math

import numpy as np
import pytest

from jaxdist.input.tokens import PackedDocuments

SMALL = [
    *("data.context=16", "data.batch=8", "optim.lr=0.01", "plan.mesh.data=2"),
    *("model.depth=1", "model.heads=2", "model.kv_heads=1", "model.embed=16"),
]
ALPHABET = "abcdefghijklmnop"


def call(job, *words):
    code, out, err = job.call(*words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory):
    """A run on documents that are beginnings of the alphabet, of all lengths."""
    folder = tmp_path_factory.mktemp("tokens")
    rows = [{"text": ALPHABET[: n % 16 + 1] + str(n)} for n in range(300)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    where = "--dir", folder, "--vocabulary", "257"
    made = call(job, "prepare", "text", folder / "mine.jsonl", *where)
    words = [*SMALL, f"data.name={made['data']}", "epochs=6", f"run.dir={folder}"]
    return folder / "characters", made, call(job, "train", "characters", *words)


def test_scores_are_sums_over_held_out_documents(job, trained):
    run, made, summary = trained
    source = PackedDocuments(run.parent / "mine", "test", 16)
    windows = source.get(np.arange(len(source)))
    assert summary["answers"] == (windows["target"] >= 0).sum()
    assert summary["answers"] == made["tokens"]["test"] + made["documents"]["test"]
    score = call(job, "eval", run)
    assert score["perplexity"] == pytest.approx(
        math.exp(
            score["bits_per_byte"]
            * math.log(2)
            * windows["bytes"].sum()
            / score["answers"]
        )
    )
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    *_, last = (row for row in rows if row["kind"] == "test")
    assert score["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=1e-6)
    _, out, _ = job.call("eval", run)
    assert "bits_per_byte" in out


def test_it_goes_on_with_several_prompts_until_they_end(job, trained):
    run, *_ = trained
    asked = ["--prompt", "abcdef", "--prompt", "ab", "--tokens", "40", "--top-k", "3"]
    found = call(job, "generate", run, *asked, "--temperature", "0")
    assert found["prompt"] == ["abcdef", "ab"]
    assert found["text"][0].startswith("gh")
    # Both documents end before 40 tokens are said.
    assert max(map(len, found["text"])) < 40
    alone = call(job, "generate", run, *asked[:2], *asked[4:], "--temperature", "0")
    assert alone["text"] == found["text"][0]


def test_a_report_shows_how_documents_go_on(job, trained):
    code, _, err = job.call("report", trained[0])
    assert code == 0, err
    found = json.loads((trained[0] / "samples.json").read_text())
    assert all(text["prompt"] + text["written"] for text in found["texts"])


def test_choices_are_the_likeliest_continuation(job, trained, tmp_path):
    run, *_ = trained
    rows = [
        {"prompt": ALPHABET[:n], "choices": ["aaa", ALPHABET[n : n + 2]], "answer": 1}
        for n in range(3, 9)
    ]
    # One whose answer is said to be the unlikely choice.
    rows.append({**rows[0], "answer": 0})
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = call(job, "eval", run, "--choices", tmp_path / "asked.jsonl")
    assert (found["questions"], found["accuracy"]) == (7, 6 / 7)
    assert found["accuracy_per_byte"] == 6 / 7
    (tmp_path / "asked.jsonl").write_text('{"prompt": "a", "choices": ["b"]}')
    code, _, err = job.call("eval", run, "--choices", tmp_path / "asked.jsonl")
    assert code == 2
    assert "line 1" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "characters", "model.vocabulary=100"], "model.vocabulary=257"),
        (["generate", "RUN", "--prompt", "a", "--top-p", "2"], "--top-p is above 0"),
        (["generate", "RUN", "--prompt", "a", "--top-k", "-1"], "--top-k is at least"),
        (["prepare", "text", "FILE", "--dir", "DIR"], "there is a data set mine"),
        (["prepare", "DIR", "--vocabulary", "300"], "jaxdist prepare text"),
    ],
)
def test_what_does_not_fit_says_what_to_type(job, trained, words, said):
    run, made, _ = trained
    known = {"RUN": run, "FILE": run.parent / "mine.jsonl", "DIR": run.parent}
    words = [known.get(word, word) for word in words]
    if words[0] == "train":
        words += [*SMALL, f"data.name={made['data']}", f"run.dir={run.parent / 'new'}"]
    code, _, err = job.call(*words)
    assert code == 2
    assert said in err
