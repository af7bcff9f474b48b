"""What compressed gradients left follows a run: unchanged, or summed on purpose."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.error_feedback import ErrorFeedback
from jaxdist.train.state import TrainState


def state_on(devices, memory=1):
    rng = np.random.default_rng(devices)
    left = rng.normal(size=(devices, 6, 4)).astype(np.float32)
    state = TrainState(
        step=jnp.int32(3),
        params={"kernel": jnp.ones((6, 4))},
        stats={},
        opt=(),
        feedback=ErrorFeedback(
            residual={"kernel": left},
            velocity={"kernel": 2 * left},
            memory={"kernel": rng.normal(size=(memory, 4, 2)).astype(np.float32)},
        ),
    )
    return jax.tree.map(lambda x: jax.device_put(x, place(x, devices)), state)


def place(x, devices):
    mesh = Mesh(
        np.array(jax.devices()[:devices]), ("data",), axis_types=(AxisType.Auto,)
    )
    return NamedSharding(
        mesh, P("data") if x.ndim == 3 and x.shape[0] == devices else P()
    )


def shapes_of(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def saved(folder, state):
    checkpoints = Checkpoints(folder)
    checkpoints.save(state)
    checkpoints.wait()
    return checkpoints


def test_on_as_many_devices_not_a_bit_changes(tmp_path):
    state = state_on(4)
    found = saved(tmp_path, state).restore_newest(shapes_of(state)).state
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("devices", [2, 8])
def test_on_others_what_is_still_to_be_sent_is_the_same(tmp_path, devices):
    state, other = state_on(4), state_on(devices)
    found = saved(tmp_path, state).restore_newest(shapes_of(other)).state
    for name in ("residual", "velocity"):
        old = np.asarray(getattr(state.feedback, name)["kernel"], np.float64)
        new = np.asarray(getattr(found.feedback, name)["kernel"], np.float64)
        assert new.shape[0] == devices
        assert np.abs(new.sum(0) - old.sum(0)).max() < 1e-6
        assert not new[1:].any()
    kept = (x.feedback.memory["kernel"] for x in (found, state))
    assert np.array_equal(*map(np.asarray, kept))


def test_memory_of_a_parameter_that_is_split_otherwise_begins_anew(tmp_path):
    state, other = state_on(4), state_on(4, memory=2)
    found = saved(tmp_path, state).restore_newest(shapes_of(other)).state
    assert found.feedback.memory["kernel"].shape == (2, 4, 2)
    assert not found.feedback.memory["kernel"].any()


def test_evaluation_reads_none_of_it_and_training_does_not_lose_it(tmp_path):
    state = state_on(4)
    checkpoints, shapes = saved(tmp_path, state), shapes_of(state)
    assert (
        checkpoints.restore_newest(replace(shapes, opt=None, feedback=None)).step == 3
    )
    with pytest.raises(BadInput, match="feedback/"):
        checkpoints.restore_newest(replace(shapes, feedback=None))
