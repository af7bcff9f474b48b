"""Tokens are split where attention says what it reads, or refused with what works."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.partition import tensor_parallel
from jaxdist.partition.context_parallel import (
    attention_inputs,
    check_context,
    context_traffic,
)
from jaxdist.profile.layer_calls import trace_calls
from jaxdist.train.task import Task


@pytest.fixture(scope="module")
def llama():
    """The tiny network, 4 heads of queries and 2 of keys, on 4 samples of 24 tokens."""
    config = ModelConfig(name="llama", size="tiny", context=24)
    task = Task(model=model_factory(config), optimizer=optax.identity())
    state = task.state.params, task.state.stats
    tokens = jax.ShapeDtypeStruct((4, 24), jnp.int32)
    calls, _ = trace_calls(task.graph, state, tokens)
    return nnx.merge(task.graph, *state), calls


def check(llama, tokens=24, **how):
    network, calls = llama
    axes = {k: how.pop(k) for k in ("context", "tensor", "pipe", "data") if k in how}
    form = {"context": how.pop("form")} if "form" in how else {}
    plan = Plan(mesh=MeshShape(**axes), **form, **how)
    roles = tensor_parallel.assign_roles(plan, calls, network)
    check_context(plan, calls, roles, attention_inputs(network), tokens)
    return list(context_traffic(plan, calls, roles, attention_inputs(network)))


@pytest.mark.parametrize(
    ("how", "what", "remedy"),
    [
        ({"context": 5}, "24 tokens do not divide over 5", "data.context=20 or data.c"),
        # Each device has chunks from both ends.
        ({"context": 8}, "24 tokens do not divide over 8", "data.context=16 or data.c"),
        (
            {"context": 4, "tensor": 2, "tensor_strategy": "sequence", "tokens": 12},
            "12 tokens do not divide",
            "data.context=8 or data.context=16",
        ),
        (
            {"context": 4, "form": "all_to_all"},
            "block0.attention.key has heads that do not divide",
            "plan.context=all_gather",
        ),
        (
            {"context": 2, "tensor": 2, "form": "all_to_all"},
            "block0.attention.key has heads that do not divide",
            "plan.mesh.context=1",
        ),
        (
            {"context": 2, "pipe": 2, "form": "ring"},
            "cannot go round inside of a stage",
            "plan.context=all_to_all",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(llama, how, what, remedy):
    with pytest.raises(BadInput, match=what) as caught:
        check(llama, **how)
    assert remedy in str(caught.value)


def test_a_network_without_causal_attention_is_refused():
    plan = Plan(mesh=MeshShape(data=2, context=2))
    with pytest.raises(BadInput, match="no causal attention") as caught:
        check_context(plan, (), {}, (), 24)
    assert "plan.mesh.data=4 plan.mesh.context=1" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        # 4 samples of 24 tokens, 2 heads of 8 features, float32: keys are 6,144 bytes,
        # those of a device of 4, and as many values, 3,072.
        ({"context": 4}, {"all-gather": 4 * 6144, "reduce-scatter": 2 * 6144 // 4}),
        ({"context": 4, "form": "ring"}, {"collective-permute": (2 * 3 + 4) * 3072}),
        ({"context": 2, "form": "all_to_all"}, {"all-to-all": 4 * 3072 + 4 * 6144}),
        (
            {"context": 2, "tensor": 2, "data": 2},
            {"all-gather": 6144, "reduce-scatter": 6144 // 4},
        ),
        ({"data": 2}, {}),
    ],
)
def test_traffic_of_one_attention(llama, how, kinds):
    found = {}
    for row in check(llama, **how):
        assert row.layer == "block0.attention.key"
        assert row.axes == ("context",)
        found[row.kind] = found.get(row.kind, 0) + row.payload
    assert found == kinds
