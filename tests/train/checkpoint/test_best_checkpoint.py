"""The best checkpoint stays, whatever comes after it, and is found by its name."""

import math
import shutil

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.metric_goal import BestCheckpoint, MetricGoal
from jaxdist.train.checkpoint.best import read_best
from jaxdist.train.checkpoint.checkpoints import Checkpoints


def best(step, value):
    return BestCheckpoint(step=step, metric="accuracy", value=value)


def save_all(kit, folder, *scores, keep=1):
    """Save steps 1, 2, ..., each with its score or None."""
    made = Checkpoints(folder, max_to_keep=keep)
    for step, score in enumerate(scores, start=1):
        made.save(kit.make_state(step), best=score and best(step, score))
    made.close()
    return made


def test_it_stays_beside_the_newest(kit, tmp_path):
    made = save_all(kit, tmp_path / "c", 0.5, 0.9, None, None)
    assert made.steps() == (2, 4)
    assert made.best() == best(2, 0.9) == read_best(tmp_path / "c")
    restored = made.restore("best", kit.abstract(kit.make_state(2), 2))
    assert restored.step == 2
    kit.assert_same_bits(restored.state, kit.make_state(2))


def test_a_better_one_takes_its_place(kit, tmp_path):
    assert save_all(kit, tmp_path / "c", 0.5, None, 0.9, None).steps() == (3, 4)


def test_another_process_goes_on_from_it(kit, tmp_path):
    save_all(kit, tmp_path / "c", 0.9, None)
    made = Checkpoints(tmp_path / "c", max_to_keep=1)
    made.save(kit.make_state(3))
    made.close()
    assert made.steps() == (1, 3)
    assert made.best() == best(1, 0.9)


def test_a_state_that_is_saved_already_may_turn_out_the_best(kit, tmp_path):
    made = save_all(kit, tmp_path / "c", None)
    assert not made.save(kit.make_state(1), best=best(1, 0.9))
    made.save(kit.make_state(2))
    made.close()
    assert made.steps() == (1, 2)


def test_it_is_noted_only_when_it_is_written(kit, tmp_path, monkeypatch):
    """A process that is killed meanwhile leaves the one of before, and its note."""
    save_all(kit, tmp_path / "c", 0.5)
    made = Checkpoints(tmp_path / "c", max_to_keep=1)
    made.save(kit.make_state(2), best=best(2, 0.9))
    assert read_best(tmp_path / "c") == best(1, 0.5)
    assert made.best() == best(2, 0.9)
    made.close()
    assert read_best(tmp_path / "c") == best(2, 0.9)


def test_one_that_is_gone_is_none(kit, tmp_path):
    made = save_all(kit, tmp_path / "c", 0.9, None)
    shutil.rmtree(tmp_path / "c" / "1")
    assert read_best(tmp_path / "c") is None
    with pytest.raises(BadInput, match="known to be the best") as refused:
        made.verify("best")
    assert refused.value.remedy[0] == "--checkpoint 2"


@pytest.mark.parametrize(
    ("goal", "better", "worse"),
    [
        ("loss", 0.1, 0.2),
        ("accuracy", 0.9, 0.8),
        ("min:error", 1, 2),
        ("max:loss", 2, 1),
    ],
)
def test_goals(goal, better, worse):
    parsed = MetricGoal.parse(goal)
    assert parsed.is_better(better, than=worse)
    assert not parsed.is_better(worse, than=better)
    assert not parsed.is_better(worse, than=worse)
    assert not parsed.is_better(math.nan, than=worse)
    assert parsed.is_better(worse, than=math.nan)


@pytest.mark.parametrize("goal", ["mid:loss", "min:", "a:b:loss"])
def test_words_that_are_no_goal(goal):
    with pytest.raises(BadInput, match="no metric says"):
        MetricGoal.parse(goal)


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}', '{"step": "x"}', "\x00"])
def test_a_damaged_note_is_none(text, tmp_path):
    (tmp_path / "best.json").write_text(text)
    assert read_best(tmp_path) is None
