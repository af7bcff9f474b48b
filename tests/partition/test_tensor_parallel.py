"""Weights are split as the strategy says, or the split is refused with what works."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import image_shape, model_factory
from jaxdist.partition import tensor_parallel
from jaxdist.partition.param_sharding import leaf_shardings
from jaxdist.profile.layer_calls import trace_calls
from jaxdist.train.state import named_leaves
from jaxdist.train.task import Task


def network_of(name, **how):
    config = ModelConfig(name=name, size="tiny", **how)
    task = Task(model=model_factory(config), optimizer=optax.identity())
    state = task.state
    if "gpt" in name or "llama" in name:
        inputs = jax.ShapeDtypeStruct((4, 12), jnp.int32)
    else:
        inputs = jax.ShapeDtypeStruct((4, *image_shape(config)), jnp.float32)
    calls, _ = trace_calls(task.graph, (state.params, state.stats), inputs)
    return nnx.merge(task.graph, state.params, state.stats), calls, state


def roles_of(name, devices, tensor_strategy="pairs", **how):
    network, calls, _ = network_of(name, **how)
    plan = Plan(mesh=MeshShape(tensor=devices), tensor_strategy=tensor_strategy)
    return tensor_parallel.assign_roles(plan, calls, network)


def test_a_pair_is_a_column_and_a_row_with_what_lies_between():
    roles = roles_of("resnet8", 2)
    assert roles["block2.conv1"] == "column"
    assert roles["block2.norm1"] == "inner"
    assert roles["block2.conv2"] == "row"
    assert "block2.norm2" not in roles


def test_layers_outside_pairs_are_split_by_filters_where_these_divide():
    roles = roles_of("resnet8", 4)
    assert roles["stem.conv"] == "filter"
    assert "head.dense" not in roles  # ten classes


def test_heads_stay_together():
    roles = roles_of("llama", 2)
    assert {roles[f"block0.attention.{n}"] for n in ("query", "key")} == {"column"}
    assert roles["block0.attention.out"] == "row"
    assert roles["embed.tokens"] == "vocabulary"


def test_only_declared_logits_stay_in_slices():
    network, calls, _ = network_of("llama")
    plan = Plan(mesh=MeshShape(tensor=2))
    assert (
        tensor_parallel.assign_roles(plan, calls, network)["embed.tokens.attend"]
        == "logits"
    )
    network.answers = None
    assert (
        tensor_parallel.assign_roles(plan, calls, network)["embed.tokens.attend"]
        == "filter"
    )


def test_more_devices_than_heads_are_refused():
    with pytest.raises(BadInput, match=r"attention\.key cannot be dealt out") as caught:
        roles_of("llama", 4)
    assert "2 heads" in caught.value.values
    assert caught.value.remedy == ("plan.mesh.tensor=2",)


def test_more_devices_than_filters_are_refused():
    with pytest.raises(BadInput, match=r"head\.dense has no 4 equal slices") as caught:
        roles_of("resnet8", 4, "filter")
    assert "10 filters" in caught.value.values
    assert "plan.mesh.tensor=2" in caught.value.remedy


def test_channels_begin_behind_the_first_layer():
    roles = roles_of("vgg16", 4, "channel")
    assert "conv1_1.conv" not in roles
    assert roles["conv2_1.conv"] == "channel"


def test_channels_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="equal slices of channels"):
        roles_of("resnet8", 8, "channel")


def test_response_normalisation_ends_a_pair():
    network, _, _ = network_of("alexnet_two_group")
    assert all(
        "conv1" not in pair.last
        for pair in tensor_parallel.iter_column_row_pairs(network)
    )
    assert all(
        "conv2" not in pair.last
        for pair in tensor_parallel.iter_column_row_pairs(network)
    )


def test_a_leaf_is_split_by_its_role_and_shared_along_another_dim():
    network, calls, state = network_of("resnet8")
    plan = Plan(mesh=MeshShape(fsdp=2, tensor=2))
    roles = tensor_parallel.assign_roles(plan, calls, network)
    leaves = {
        x.name: x for x in leaf_shardings(plan, roles, named_leaves(state.params))
    }
    assert leaves["block3/conv1/kernel"].spec() == (None, None, "fsdp", "tensor")
    assert leaves["block3/conv2/kernel"].spec() == (None, None, "tensor", "fsdp")
    assert leaves["block3/norm1/scale"].spec() == ("tensor",)
    assert leaves["block3/norm2/scale"].spec() == ("fsdp",)


def test_tokens_are_apart_between_pairs():
    roles = roles_of("gpt2_small", 2, "sequence")
    assert roles["embed.tokens"] == "lookup"
    assert roles["embed.positions"] == roles["block0.dropout1"] == "own"
    assert roles["block0.norm1"] == roles["head.norm"] == "gather"
    assert roles["block0.mlp.down"] == "scatter"


def test_tokens_that_do_not_divide_are_refused():
    with pytest.raises(BadInput, match="12 tokens do not divide over 8") as caught:
        roles_of("gpt2_small", 8, "sequence", heads=8)
    assert caught.value.remedy[:2] == ("data.context=8", "data.context=16")


def test_images_have_no_tokens():
    with pytest.raises(BadInput, match="no tokens to split") as caught:
        roles_of("resnet8", 2, "sequence")
    assert caught.value.remedy == ("plan.tensor_strategy=pairs",)


class Plain(nnx.Module):
    """A network of layers that are not ours."""

    def __init__(self, rngs):
        self.dense = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return self.dense(x)


def test_nothing_to_split_is_an_error():
    network = Plain(nnx.Rngs(0))
    with pytest.raises(BadInput, match="nothing is split along tensor") as caught:
        tensor_parallel.assign_roles(
            Plan(mesh=MeshShape(tensor=2, data=2)), (), network
        )
    assert "plan.mesh.data=4 plan.mesh.tensor=1" in caught.value.remedy
