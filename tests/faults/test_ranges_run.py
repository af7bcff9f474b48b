"""Runs on integers that index nothing: refused before anything is written."""

import json

import numpy as np
import pytest

SETTINGS = (
    *("data.name=numpy", "data.path=t.npz", "data.context=16", "data.batch=16"),
    *("model.depth=1", "model.embed=16", "model.heads=2", "model.kv_heads=1"),
    *("model.vocabulary=100", "model.context=16", "epochs=2", "plan.mesh.data=1"),
    "run.name=x",
)


def save_tokens(change=lambda tokens, target: None, dtype=np.int64):
    tokens = np.random.default_rng(0).integers(0, 100, (80, 17)).astype(dtype)
    a, b = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    change(a, b)
    np.savez(
        *("t.npz",),
        **{"train_tokens": a[:64], "train_target": b[:64]},
        **{"test_tokens": a[64:], "test_target": b[64:]},
    )


def put(array, place, value):
    array[place] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b: put(a, (3, 5), 100), ("tokens", "sample 3", "100")),
        (lambda a, b: put(a, (3, 5), 50256), ("tokens", "sample 3", "50256")),
        (lambda a, b: put(a, (3, 10), -1), ("tokens", "sample 3", "-1")),
        (lambda a, b: put(b, (70, 2), -1), ("target", "sample 6", "-1")),
        (lambda a, b: put(a, (1, 0), 2**32), ("tokens", "sample 1", "4294967296")),
    ],
)
def test_a_token_out_of_range_is_refused(job, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    save_tokens(change)
    code, _, err = job.call("train", "characters", *SETTINGS)
    assert code == 2, err
    assert all(word in err for word in ("rule", "remedy", *words)), err
    assert not (tmp_path / "runs/x").exists()


def test_targets_to_ignore_count_for_nothing(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tokens(lambda a, b: put(b, np.s_[:, :8], -100))
    code, out, err = job.call("train", "characters", *SETTINGS, "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["answers"] == 16 * 8
    # 100 random tokens: the loss of a network that knows nothing is log 100.
    assert 4 < summary["loss"] < 5.5
