"""What is saved comes back bit for bit, on any mesh, or is refused with the reason."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints")
    yield made
    made.close()


@pytest.mark.parametrize("spread", [True, False], ids=["spread", "copied"])
def test_a_state_comes_back_bit_for_bit_on_any_mesh(kit, checkpoints, spread):
    state = kit.placed(kit.make_state(3), 16, spread=spread)
    checkpoints.save(state)
    for count in (8, 4, 2):
        target = kit.abstract(state, count, spread=spread)
        restored = checkpoints.restore_newest(target)
        assert restored.step == 3
        assert restored.skipped_checkpoints == ()
        kit.assert_same_bits(restored.state, state)
        shardings = jax.tree.map(lambda x: x.sharding, restored.state)
        wanted = jax.tree.map(lambda x: x.sharding, target)
        same = jax.tree.map(
            lambda leaf, has, wants: has.is_equivalent_to(wants, leaf.ndim),
            *(target, shardings, wanted),
        )
        assert jax.tree.all(same)


def test_many_meshes_in_a_row_lose_nothing(kit, tmp_path):
    state = kit.make_state(1)
    for count in (8, 4, 2, 16):
        checkpoints = Checkpoints(tmp_path / str(count))
        checkpoints.save(kit.placed(state, count))
        state = checkpoints.restore_newest(kit.abstract(state, count)).state
        checkpoints.close()
    kit.assert_same_bits(state, kit.make_state(1))


def test_float64_comes_back_bit_for_bit(kit, checkpoints):
    with jax.enable_x64(True):
        params = {
            "kernel": jax.numpy.asarray(np.random.default_rng(0).normal(size=(8, 8)))
        }
        state = TrainState(step=jax.numpy.int32(2), params=params, stats={}, opt=())
        checkpoints.save(kit.placed(state, 8))
        restored = checkpoints.restore_newest(kit.abstract(state, 4)).state
        kit.assert_same_bits(restored, state)
        assert restored.params["kernel"].dtype == np.float64


@pytest.mark.parametrize("spread", [True, False], ids=["spread", "copied"])
def test_arrays_may_be_donated_as_soon_as_save_returns(kit, checkpoints, spread):
    """The write still runs when the next step overwrites the buffers."""
    state = kit.placed(kit.make_state(5), 8, spread=spread)
    target = kit.abstract(state, 8)
    numbers = jax.tree.leaves((state.params, state.stats))
    layout = [leaf.sharding for leaf in numbers]
    step = jax.jit(
        lambda leaves: [leaf - 1 for leaf in leaves],
        donate_argnums=0,
        out_shardings=layout,
    )
    step([jax.numpy.copy(leaf) for leaf in numbers])  # compiled before the race
    checkpoints.save(state)
    for _ in range(3):
        numbers = jax.block_until_ready(step(numbers))
    restored = checkpoints.restore_newest(target).state
    kit.assert_same_bits(restored, kit.make_state(5))


def test_what_the_run_adds_comes_back(kit, checkpoints):
    about = {"model": "resnet8", "seeds": [1, 2], "plan": {"data": 4}}
    checkpoints.save(kit.make_state(1), about)
    assert (
        checkpoints.restore_newest(kit.abstract(kit.make_state(), 1)).metadata == about
    )


def test_an_empty_folder_restores_nothing(kit, tmp_path):
    folder = tmp_path / "none" / "checkpoints"
    checkpoints = Checkpoints(folder)
    assert checkpoints.steps() == ()
    assert checkpoints.restore_newest(kit.abstract(kit.make_state(), 1)) is None
    checkpoints.close()
    assert not folder.exists()


def test_the_newest_are_kept(kit, tmp_path):
    checkpoints = Checkpoints(tmp_path, max_to_keep=2)
    for step in (2, 10, 9, 30):
        checkpoints.save(kit.make_state(step))
        checkpoints.wait()
    assert checkpoints.steps() == (10, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "30"]
    state = checkpoints.restore(10, kit.abstract(kit.make_state(), 2)).state
    kit.assert_same_bits(state, kit.make_state(10))
    checkpoints.close()


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(BadInput, match="at least 1"):
        Checkpoints(tmp_path, max_to_keep=0)


def test_the_same_state_saved_twice_is_saved_once(kit, checkpoints):
    assert checkpoints.save(kit.make_state(4)) is True
    assert checkpoints.save(kit.make_state(4)) is False
    with pytest.raises(BadInput, match="never overwritten"):
        checkpoints.save(kit.make_state(4, seed=1))
    restored = checkpoints.restore_newest(kit.abstract(kit.make_state(), 1))
    kit.assert_same_bits(restored.state, kit.make_state(4))


def test_another_model_is_refused_and_nothing_is_moved(kit, checkpoints):
    checkpoints.save(kit.make_state(7))
    with pytest.raises(BadInput) as refused:
        checkpoints.restore_newest(kit.abstract(kit.make_state(width=32), 1))
    text = str(refused.value)
    assert "of another model" in text
    assert "params/head/kernel is bfloat16 [16, 16] in the checkpoint" in text
    assert "bfloat16 [32, 16] in this run" in text
    assert "run.name=" in text
    assert checkpoints.steps() == (7,)


def test_another_precision_is_refused(kit, checkpoints):
    checkpoints.save(kit.make_state(7))
    half = jax.tree.map(
        lambda x: x.astype("float16") if x.dtype == np.float32 else x, kit.make_state()
    )
    with pytest.raises(BadInput) as refused:
        checkpoints.restore_newest(kit.abstract(half, 1))
    assert "of another precision" in str(refused.value)
    assert "params/norm/bias is float32 [16]" in str(refused.value)


def test_more_or_fewer_leaves_are_another_model(kit, checkpoints):
    state = kit.make_state(7)
    checkpoints.save(state)
    tx, extra = state.opt
    for opt, word in (
        (tx, "absent in"),
        ((tx, {**extra, "new": extra["key"]}), "absent in"),
    ):
        other = TrainState(
            step=state.step, params=state.params, stats=state.stats, opt=opt
        )
        with pytest.raises(BadInput, match=word):
            checkpoints.restore_newest(kit.abstract(other, 1))


def test_the_optimizer_need_not_be_read(kit, checkpoints):
    state = kit.make_state(7)
    checkpoints.save(state)
    bare = TrainState(step=state.step, params=state.params, stats=state.stats, opt=None)
    restored = checkpoints.restore_newest(kit.abstract(bare, 2)).state
    kit.assert_same_bits(restored, bare)


def test_a_target_without_layout_is_a_mistake_in_the_program(kit, checkpoints):
    checkpoints.save(kit.make_state(7))
    with pytest.raises(TypeError, match="no sharding for step"):
        checkpoints.restore_newest(jax.eval_shape(kit.make_state))


def test_a_step_that_is_not_there_is_named(kit, checkpoints):
    checkpoints.save(kit.make_state(7))
    with pytest.raises(BadInput, match="no checkpoint 8") as refused:
        checkpoints.restore(8, kit.abstract(kit.make_state(), 1))
    assert "checkpoints: 7" in str(refused.value)


def test_orbax_is_not_imported_before_the_first_save(tmp_path):
    script = f"""
import json, sys
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState
checkpoints = Checkpoints({str(tmp_path)!r})
checkpoints.restore_newest(TrainState(step=None, params=None, stats=None, opt=None))
print(json.dumps("orbax.checkpoint" in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) is False
