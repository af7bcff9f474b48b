"""What has no meaning where replicas do not talk in a step is refused."""

from dataclasses import replace

import jax
import optax
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.train.diloco import check_outer_loop, replicate_state
from jaxdist.train.nonfinite import skip_nonfinite
from jaxdist.train.state import TrainState

SGD = optax.sgd(0.1)
PLAN = Plan(mesh=MeshShape(replica=2), outer=OuterConfig(sync_interval=5))


def state(optimizer=SGD):
    params = {"kernel": jax.numpy.ones((3, 2))}
    return TrainState(step=0, params=params, stats={}, opt=optimizer.init(params))


def test_skipped_steps_are_refused():
    with pytest.raises(BadInput, match="replicas do not talk") as caught:
        check_outer_loop(PLAN, state(skip_nonfinite(SGD)))
    assert caught.value.remedy[0] == "optim.skip_nonfinite=0"


def test_an_average_of_the_weights_is_refused():
    with pytest.raises(BadInput, match=r"optim\.ema") as caught:
        check_outer_loop(PLAN, replace(state(), average={}))
    assert caught.value.remedy[0] == "optim.ema=0"


def test_one_replica_takes_all_of_it():
    check_outer_loop(Plan(), replace(state(skip_nonfinite(SGD)), average={}))


def test_each_replica_has_a_copy_and_the_velocity_is_one_for_all():
    found = replicate_state(PLAN, state(optax.sgd(0.1, momentum=0.9)))
    assert found.opt is None
    assert found.replicas.params["kernel"].shape == (2, 3, 2)
    assert found.replicas.opt[0].trace["kernel"].shape == (2, 3, 2)
    assert found.replicas.velocity["kernel"].shape == (3, 2)


def test_without_momentum_there_is_no_velocity():
    plan = replace(PLAN, outer=OuterConfig(sync_interval=5, momentum=0))
    assert replicate_state(plan, state()).replicas.velocity is None


def test_what_a_replica_has_not_sent_is_its_own():
    outer = OuterConfig(sync_interval=5, momentum=0, compressor="chunked_top_k")
    found = replicate_state(replace(PLAN, outer=outer), state())
    assert found.replicas.outer_feedback["kernel"].shape == (2, 3, 2)
    assert replicate_state(PLAN, state()).replicas.outer_feedback is None
