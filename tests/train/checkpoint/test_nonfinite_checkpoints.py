"""Checkpoints that hold numbers that are not finite: never called verified."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import checkpoints as module
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.checkpoint.checksum import has_nonfinite
from jaxdist.train.state import TrainState


def make_state(weight=1.0, mean=0.0, step=3):
    return TrainState(
        step=jnp.int32(step),
        params={"kernel": jnp.array([0.0, weight])},
        stats={"mean": jnp.array([mean])},
        opt={"trace": jnp.zeros(2)},
    )


def shapes(state):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state
    )


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_not_verified(
    tmp_path, monkeypatch, weight, flagged
):
    """With the flag, and without it, as older versions saved."""
    if not flagged:
        whole = module.CheckpointManifest
        monkeypatch.setattr(
            module, "CheckpointManifest", lambda finite, **known: whole(**known)
        )
    saved = Checkpoints(tmp_path)
    saved.save(make_state())
    saved.save(state := make_state(weight, step=4))
    saved.close()
    held = reader.read_manifest(tmp_path / "4")
    assert held.finite is (False if flagged else None)
    assert reader.find_corruption(tmp_path / "3") is None
    damage = reader.find_corruption(tmp_path / "4")
    assert damage == "params/kernel, numbers that are not finite"
    with pytest.raises(BadInput, match="params/kernel"):
        saved.restore(None, shapes(replace(state, opt=None)))
    # A run goes on from the one before.
    assert int(saved.restore_newest(shapes(state)).state.step) == 3


def test_a_mask_of_infinities_is_right(tmp_path):
    saved = Checkpoints(tmp_path)
    saved.save(make_state(mean=-np.inf))
    saved.close()
    assert reader.read_manifest(tmp_path / "3").finite
    assert reader.find_corruption(tmp_path / "3") is None


@given(st.lists(st.floats(width=32), max_size=20))
def test_what_is_learnt_is_finite_and_nothing_is_nan(values):
    array = np.array(values, np.float32)
    assert has_nonfinite("params/x", array) == (not np.isfinite(array).all())
    assert has_nonfinite("stats/x", array) == bool(np.isnan(array).any())
