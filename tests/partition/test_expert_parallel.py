"""Experts are split where they divide, or refused with what works."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Experts
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.partition import tensor_parallel
from jaxdist.partition.expert_parallel import (
    check_experts,
    expert_flops,
    expert_layers,
    expert_traffic,
)
from jaxdist.partition.param_sharding import leaf_shardings
from jaxdist.profile.layer_calls import calls_of_type, trace_calls
from jaxdist.train.state import named_leaves
from jaxdist.train.task import Task


def traced(**settings):
    """A tiny network on 8 samples of 16 tokens, and its calls."""
    config = ModelConfig(size="tiny", **settings)
    task = Task(model=model_factory(config), optimizer=optax.identity())
    state = task.state.params, task.state.stats
    calls, _ = trace_calls(task.graph, state, jax.ShapeDtypeStruct((8, 16), jnp.int32))
    return nnx.merge(task.graph, *state), calls, named_leaves(task.state.params)


@pytest.fixture(scope="module")
def mixtral():
    return traced(name="mixtral")


def plan_of(tensor_strategy="pairs", replicated_axes=(), **axes):
    return Plan(
        mesh=MeshShape(**axes),
        tensor_strategy=tensor_strategy,
        replicated_axes=replicated_axes,
    )


@pytest.mark.parametrize(
    ("settings", "how", "what", "remedy"),
    [
        ({}, {"expert": 3}, "4 experts do not divide over 3", "plan.mesh.expert=2"),
        ({}, {"expert": 8}, "4 experts do not divide over 8", "model.experts=8"),
        (
            {"name": "llama"},
            {"expert": 2, "data": 2},
            "the network has no experts",
            "plan.mesh.data=4 plan.mesh.expert=1",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(mixtral, settings, how, what, remedy):
    network = traced(**{"name": "mixtral"} | settings)[0] if settings else mixtral[0]
    with pytest.raises(BadInput) as error:
        check_experts(plan_of(**how), expert_layers(network))
    assert what in str(error.value)
    assert remedy in str(error.value)


def test_hidden_features_divide_over_the_tensor_axis(mixtral):
    network, calls, _ = mixtral
    with pytest.raises(BadInput, match=r"64 hidden features, plan.mesh.tensor = 3"):
        tensor_parallel.megatron_roles(
            [w for w in tensor_parallel.shardable_layers(calls) if "mlp" in w.path],
            network,
            3,
        )


def test_experts_are_split_by_expert_then_tensor_then_fsdp(mixtral):
    network, calls, leaves = mixtral
    plan = plan_of(expert=2, tensor=2, fsdp=2)
    roles = tensor_parallel.assign_roles(plan, calls, network)
    found = {
        leaf.name: leaf.spec()
        for leaf in leaf_shardings(plan, roles, leaves, expert_layers(network))
    }
    assert found["block0/mlp/gate"] == ("expert", "fsdp", "tensor")
    assert found["block0/mlp/down"] == ("expert", "tensor", "fsdp")
    # All else is whole along expert.
    assert found["block0/mlp/router"] == ("fsdp", None)
    assert "expert" not in found["block0/attention/out/kernel"]


def test_tokens_are_gathered_before_the_router_and_scattered_behind(mixtral):
    network, calls, leaves = mixtral
    plan = plan_of("sequence", tensor=2, expert=2)
    roles = tensor_parallel.assign_roles(plan, calls, network)
    assert roles["block0.norm2"] == "gather"
    assert roles["block0.mlp"] == "combine"
    found = {
        leaf.name: leaf.spec()
        for leaf in leaf_shardings(plan, roles, leaves, expert_layers(network))
    }
    assert found["block0/mlp/up"] == ("expert", None, "tensor")
    assert found["block0/mlp/down"] == ("expert", "tensor", None)
    # 4 samples a device, 16 tokens, 32 features of 4 bytes: the gradient is gathered.
    whole = 4 * 16 * 32 * 4
    rows = tensor_parallel.tensor_traffic(plan, calls, roles)
    assert {row.kind: row.payload for row in rows if row.layer == "block0.mlp"} == {
        "reduce-scatter": whole // 2,
        "all-gather": whole,
    }


@pytest.mark.parametrize(
    ("capacity", "slots", "counts"), [(None, 16, 4 * 4 * 4), (1.0, 8, 0)]
)
def test_slots_go_to_their_experts_and_back_twice(capacity, slots, counts):
    _, calls, _ = traced(name="mixtral", capacity_factor=capacity)
    plan = plan_of(expert=2)
    tokens, balance = expert_traffic(plan, calls)
    # 4 samples a device, 4 experts, 32 features of 4 bytes.
    assert tokens.payload == 4 * (4 * 4 * slots * 32 * 4) + counts
    assert (tokens.kind, tokens.axes) == ("all-to-all", ("expert",))
    assert (balance.kind, balance.payload) == ("all-reduce", 4 * 4)


# Of 16 tokens a sample, 8 on a device, which may have all 10 slots of the sample, or 5.
@pytest.mark.parametrize(("capacity", "slots"), [(1.25, 8), (0.625, 5), (None, 8)])
def test_devices_of_a_sample_send_its_slots_or_their_tokens(capacity, slots):
    _, calls, _ = traced(name="mixtral", capacity_factor=capacity)
    plan = plan_of(expert=2, context=2)
    tokens, *shared, balance = expert_traffic(plan, calls)
    counts = 4 * 4 * 4 * (capacity is None)
    assert tokens.payload == 4 * (4 * 4 * slots * 32 * 4) + counts
    assert balance.axes == ("expert", "context")
    # Of each of 2 devices: 4 samples, first and second choices, 2 chunks, 4 experts.
    found = [(row.kind, row.axes, row.payload) for row in shared]
    gathered = ("all-gather", ("context",), 2 * 4 * 2 * 2 * 4 * 4)
    assert found == [gathered] * (capacity is not None)


def test_without_a_split_only_active_experts_are_work(mixtral):
    _, calls, _ = mixtral
    (call,) = calls_of_type(calls, Experts)
    tokens = 8 * 16
    # Forward and backward: six products of 32 x 64 for each choice, and 12 operations
    # of its activation; scores of 4 experts, and a sum over 2.
    each = 3 * 3 * 2 * 32 * 64 + 12 * 64
    others = 3 * 2 * tokens * 32 * (4 + 2)
    near = pytest.approx(2 * tokens * each + others, rel=0.01)
    assert expert_flops(Plan(), call, {}) == near
    # A device may have all choices of its own and of other devices' tokens.
    near = pytest.approx(2 * tokens * each + others // 2, rel=0.01)
    assert expert_flops(plan_of(expert=2), call, {}) == near
