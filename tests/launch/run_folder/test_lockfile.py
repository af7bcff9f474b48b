"""The lock file, and the changes between two of them."""

import json

import numpy as np
import pytest

import jaxdist
from jaxdist.core.errors import BadInput
from jaxdist.input.sources import ArraySource
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import (
    ConfigLock,
    changed_keys,
    changed_packages,
    check_resume,
    check_same_samples,
    fingerprint_samples,
    installed_versions,
    lock_from_json,
    lock_to_json,
    read_config_lock,
    write_config_lock,
)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_what_is_written_is_read_back(folder):
    resolved = resolve_config(
        "digits", ["plan.replicated_axes=tensor", "optim.lr=0.3", "epochs=0.5"]
    )
    write_config_lock(folder, resolved)
    lock = read_config_lock(folder)
    assert lock.resolved == resolved
    assert lock.packages == installed_versions()
    assert lock.packages["jaxdist"] == jaxdist.__version__
    assert lock.packages["jax"][0].isdigit()


def test_every_value_says_who_set_it(folder):
    write_config_lock(folder, resolve_config("digits", ["optim.lr=0.3"]))
    tree = json.loads(folder.config_lock.read_text())
    assert tree["values"]["optim.lr"] == {"value": 0.3, "by": "command line"}
    assert tree["values"]["plan.mesh.spatial_h"] == {"value": 2, "by": "experiment"}
    assert tree["values"]["plan.mesh.pipe"] == {"value": 1, "by": "default"}


def test_a_key_newer_than_the_lock_has_its_default():
    tree = json.loads(
        lock_to_json(ConfigLock(resolved=resolve_config("digits"), packages={}))
    )
    del tree["values"]["checkpoint.keep"]
    lock = lock_from_json(json.dumps(tree))
    assert lock.resolved == resolve_config("digits")


def test_a_key_that_is_gone_names_the_version():
    tree = json.loads(
        lock_to_json(
            ConfigLock(resolved=resolve_config("digits"), packages={"jaxdist": "9.9"})
        )
    )
    tree["values"]["optim.speed"] = {"value": 1, "by": "default"}
    with pytest.raises(BadInput, match="unknown key optim") as caught:
        lock_from_json(json.dumps(tree))
    assert caught.value.remedy == ("pip install jaxdist==9.9",)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"values": 3}'])
def test_a_damaged_lock(folder, text):
    folder.config_lock.write_text(text)
    with pytest.raises(BadInput, match=r"is damaged|cannot be used"):
        read_config_lock(folder)


def test_changes_name_the_keys_and_both_values():
    old = resolve_config("digits").config
    new = resolve_config("digits", ["epochs=40", "plan.mesh.spatial_h=1"]).config
    changes = changed_keys(old, new)
    assert [(c.key, c.old, c.new) for c in changes] == [
        ("epochs", old.epochs, 40),
        ("plan.mesh.spatial_h", 2, 1),
    ]
    assert changes[0].text == f"epochs {old.epochs}, now 40"
    assert changed_keys(old, old) == ()


def test_changed_packages_include_those_that_came_or_went():
    locks = [
        ConfigLock(resolved=resolve_config("digits"), packages=packages)
        for packages in (
            {"jax": "0.10.2", "numpy": "2.0"},
            {"jax": "0.11.0", "numpy": "2.0", "grain": "1"},
        )
    ]
    assert [(c.key, c.old, c.new) for c in changed_packages(*locks)] == [
        ("jax", "0.10.2", "0.11.0"),
        ("grain", None, "1"),
    ]


def test_a_resume_may_change_layout_and_length():
    words = [
        "plan.mesh.data=2",
        "epochs=40",
        "run.dir=x",
        "checkpoint.keep=9",
        "optim.lr=0.01",
    ]
    changes = check_resume(
        resolve_config("digits").config, resolve_config("digits", words).config
    )
    assert [change.key for change in changes] == [
        "epochs",
        "run.dir",
        "optim.lr",
        "plan.mesh.data",
        "checkpoint.keep",
    ]


@pytest.mark.parametrize(
    "word", ["seed=3", "precision=float64", "data.batch=32", "model.width=8"]
)
def test_a_resume_keeps_what_the_state_rests_on(word):
    old = resolve_config("digits").config
    with pytest.raises(BadInput) as caught:
        check_resume(old, resolve_config("digits", [word]).config)
    key = word.partition("=")[0]
    assert caught.value.what == f"the run was started with another {key}"
    assert caught.value.remedy[0].startswith(f"{key}=")
    assert caught.value.remedy[1] == "or start another run: run.name=digits-2"
    assert (
        check_resume(
            old, resolve_config("digits", [word, caught.value.remedy[0]]).config
        )
        == ()
    )


def test_a_resume_keeps_its_samples():
    old = {"train": "10 samples, aa", "test": "3 samples, bb"}
    check_same_samples(old, old)
    check_same_samples({}, old)  # written before samples were named
    with pytest.raises(BadInput, match="the train samples are not those") as caught:
        check_same_samples(old, {**old, "train": "12 samples, cc"})
    assert "train: 10 samples, aa, now 12 samples, cc" in caught.value.values


def test_samples_are_named_by_the_whole_of_their_fingerprint():
    one, other = (ArraySource({"x": np.arange(3)}) for _ in range(2))
    one.fingerprint = "a mixture of two sources, version 1"
    other.fingerprint = "a mixture of two sources, version 2"
    named = fingerprint_samples(one, other)
    assert named["train"] != named["test"]
    assert named["train"].startswith("3 samples, ")
