"""A state of replicas is stored whole, and restored on as many."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.diloco import replicate_state
from jaxdist.train.state import TrainState

SPARSE = OuterConfig(sync_interval=5, momentum=0, compressor="chunked_top_k")


def state(replicas, outer=None):
    outer = outer or OuterConfig(sync_interval=5)
    plan = Plan(mesh=MeshShape(replica=replicas), outer=outer)
    params = {"kernel": jnp.arange(6.0).reshape(3, 2)}
    opt = optax.adam(0.1).init(params)
    one = TrainState(step=jnp.int32(4), params=params, stats={}, opt=opt)
    return replicate_state(plan, one)


def abstract(given):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), given
    )


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(2))
    yield checkpoints
    checkpoints.close()


def test_every_bit_comes_back(saved):
    found = saved.restore(None, abstract(state(2))).state
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state(2)), strict=True):
        assert (a == b).all()


def test_what_replicas_have_not_sent_comes_back(tmp_path):
    given = state(2, SPARSE)
    rest = {"kernel": jnp.arange(12.0).reshape(2, 3, 2) / 7}
    given = replace(given, replicas=replace(given.replicas, outer_feedback=rest))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(given)
    found = checkpoints.restore(None, abstract(given)).state
    checkpoints.close()
    assert (found.replicas.outer_feedback["kernel"] == rest["kernel"]).all()


@pytest.mark.parametrize("here", [1, 4])
def test_another_number_of_replicas_is_refused(saved, here):
    with pytest.raises(BadInput, match="is of 2 replicas") as caught:
        saved.restore(None, abstract(state(here)))
    assert caught.value.values == f"2 in the checkpoint, {here} in this run"
    assert caught.value.remedy[0] == "plan.mesh.replica=2"


def test_who_uses_the_network_reads_no_replicas(saved):
    one = state(1)
    bare = TrainState(step=one.step, params=one.params, stats={}, opt=None)
    found = saved.restore(None, abstract(bare)).state
    assert (found.params["kernel"] == one.params["kernel"]).all()
