"""Keys under their old names: on the command line, in lock files and in plan files."""

import json
from dataclasses import asdict

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.aliases import PLAN_KEY_ALIASES
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.launch.config.aliases import KEY_ALIASES, rename_overrides
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.plan_file import load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.config.tree import flatten_config, format_value, key_types
from jaxdist.launch.run_folder.lockfile import (
    ConfigLock,
    lock_from_json,
    lock_to_json,
)

OLD_NAMES = {new: old for old, new in KEY_ALIASES.items()}
PLAN = Plan(
    mesh=MeshShape(replica=2, data=4),
    tensor_strategy="filter",
    replicated_axes=("spatial_h",),
    reduce=ReductionConfig(algorithm="top_k", warmup_steps=3, error_feedback=False),
    outer=OuterConfig(sync_interval=50, compressor="bf16"),
    shuffle=ShuffleConfig(exchange_fraction=0.1),
)


def old_plan(plan):
    """Write a plan as a version before the renaming did."""
    tree = asdict(plan)
    for old, new in PLAN_KEY_ALIASES.items():
        group, _, name = old.rpartition(".")
        part = tree[group] if group else tree
        part[name] = part.pop(new.rpartition(".")[2])
    return tree


@pytest.mark.parametrize("old", KEY_ALIASES)
def test_an_alias_stands_for_a_key_of_the_same_group(old):
    known, new = key_types(Experiment), KEY_ALIASES[old]
    assert new in known
    assert old not in known
    assert old.rpartition(".")[0] == new.rpartition(".")[0]


@pytest.mark.parametrize("old", KEY_ALIASES)
def test_an_old_key_sets_what_the_new_one_does(old):
    new = KEY_ALIASES[old]
    value = format_value(flatten_config(Experiment(name="digits"))[new])
    resolved = resolve_config("digits", [f"{old}={value}"])
    assert resolved.config == resolve_config("digits", [f"{new}={value}"]).config
    assert resolved.sources[new] == "command line"


def test_a_key_under_both_names_is_refused():
    words = ["plan.reduce.via=int8", "plan.reduce.algorithm=bf16"]
    with pytest.raises(BadInput, match="is the old name") as caught:
        resolve_config("digits", words)
    assert caught.value.remedy == ("without plan.reduce.via",)


def test_words_that_are_no_overrides_stay():
    words = ["plan.reduce.via", "--json", "seed=1"]
    assert rename_overrides(words) == (words, {})


def test_an_old_lock_file_opens():
    words = [
        *("plan.reduce.algorithm=int8", "plan.shuffle.exchange_fraction=0.1"),
        *("data.cache=memory", "run.hang_timeout_s=7"),
    ]
    resolved = resolve_config("digits", words)
    tree = json.loads(lock_to_json(ConfigLock(resolved=resolved, packages={})))
    tree["values"] = {OLD_NAMES.get(k, k): row for k, row in tree["values"].items()}
    assert "data.store" in tree["values"]
    assert lock_from_json(json.dumps(tree)).resolved == resolved

    tree["values"]["data.cache"] = tree["values"]["data.store"]
    with pytest.raises(BadInput, match=r"data\.store is the old name of data\.cache"):
        lock_from_json(json.dumps(tree))


def test_an_old_plan_file_opens(tmp_path):
    file = tmp_path / "plan.json"
    tree = old_plan(PLAN)
    assert tree["reduce"]["via"] == "top_k"
    file.write_text(json.dumps(tree))
    assert Plan.from_json(file.read_text()) == PLAN
    assert "plan.reduce.algorithm=top_k" in load_plan_overrides(str(file))


@pytest.mark.parametrize("old", PLAN_KEY_ALIASES)
def test_a_plan_with_both_names_is_refused(old):
    tree = asdict(PLAN)
    group, _, name = old.rpartition(".")
    part = tree[group] if group else tree
    part[name] = part[PLAN_KEY_ALIASES[old].rpartition(".")[2]]
    with pytest.raises(BadInput, match="is the old name of") as caught:
        Plan.from_json(json.dumps(tree))
    assert caught.value.remedy == (f"without {old}",)
