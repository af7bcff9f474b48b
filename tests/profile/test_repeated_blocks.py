"""Blocks that are alike are read once, and what is read is the same as of them all."""

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.models.config import ModelConfig
from jaxdist.models.resnet import ResNet50, ResNetPreset
from jaxdist.models.transformer import Gpt2, Llama
from jaxdist.profile.abstract import build_abstract_network
from jaxdist.profile.layer_calls import trace_calls
from jaxdist.profile.network_profile import profile_network
from jaxdist.profile.repeated_blocks import (
    RepeatedBlocks,
    find_equal_blocks,
    find_repeated_blocks,
)

TOKENS = jax.ShapeDtypeStruct((4, 8), jnp.int32)
IMAGES = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)


class Long(ResNet50):
    """Six blocks of one stage, the first of which changes the shape."""

    presets: ClassVar = {
        "full": ResNetPreset(image=(32, 32), width=4, stages=((6, 1, 1),), classes=4)
    }


def of(make, **settings):
    config = ModelConfig(**settings)
    return build_abstract_network(
        lambda dtype, rngs: make(config, dtype=dtype, rngs=rngs)
    )


NETWORKS = {
    "gpt2": (lambda: of(Gpt2, name="gpt2_small", size="tiny", depth=7), TOKENS, 4),
    "llama": (lambda: of(Llama, name="llama", size="tiny", depth=5), TOKENS, 2),
    "resnet": (lambda: of(Long, name="resnet50"), IMAGES, 2),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    make, inputs, left_out = NETWORKS[request.param]
    return make(), inputs, left_out


def test_a_profile_of_few_blocks_is_that_of_all(network):
    made, inputs, left_out = network
    alike = find_repeated_blocks(made, [inputs])
    assert len(alike.representatives) == left_out
    short = profile_network(made, [inputs], repeated_blocks=alike)
    assert short == profile_network(made, [inputs], repeated_blocks=RepeatedBlocks())


def test_calls_of_few_blocks_are_those_of_all(network):
    made, inputs, _ = network
    graph, *state = nnx.split(made, nnx.Param, ...)
    alike = find_repeated_blocks(made, [inputs])
    short, _ = trace_calls(graph, state, inputs, repeated_blocks=alike)
    whole, _ = trace_calls(graph, state, inputs)
    assert [replace(call, layer=None) for call in short] == [
        replace(call, layer=None) for call in whole
    ]
    assert [type(call.layer).__name__ for call in short] == [
        type(call.layer).__name__ for call in whole
    ]


class Halves(nnx.Module):
    """A block without arrays that returns half of what it is given."""

    def __call__(self, x):
        return x[:, : x.shape[1] // 2]


class Same(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return self.dense(x)


class Start(nnx.Module):
    """What is in front of them."""

    def __call__(self, x):
        return x + 1


class Row(nnx.Module):
    """A chain of six blocks behind another one."""

    def __init__(self, make):
        self.start = Start()
        for k in range(6):
            setattr(self, f"block{k}", make())

    def chain(self):
        yield "start", self.start
        for k in range(6):
            yield f"block{k}", getattr(self, f"block{k}")

    def __call__(self, x):
        for _, block in self.chain():
            x = block(x)
        return x


class Skipping(Row):
    """Calls a block beside its chain."""

    def __call__(self, x):
        return super().__call__(x) + self.block3(x)


class Shared(Row):
    """Two of its blocks have one array."""

    def __init__(self, make):
        super().__init__(make)
        self.block4.dense = self.block2.dense


VECTORS = jax.ShapeDtypeStruct((2, 64), jnp.float32)
WORDS = jax.ShapeDtypeStruct((2, 8), jnp.float32)


def rows(kind):
    return build_abstract_network(lambda dtype, rngs: kind(lambda: Same(rngs)))


def test_blocks_are_alike_that_return_what_they_are_given():
    halves = build_abstract_network(lambda dtype, rngs: Row(Halves))
    assert find_equal_blocks(halves).representatives
    assert not find_repeated_blocks(halves, [VECTORS]).representatives
    found = find_repeated_blocks(rows(Row), [WORDS])
    assert found.traced_names == ("start", "block0", "block1", "block5")


def test_a_block_that_is_called_elsewhere_is_read():
    assert not find_repeated_blocks(rows(Skipping), [WORDS]).representatives


def test_blocks_that_share_an_array_are_not_alike():
    assert not find_repeated_blocks(rows(Shared), [WORDS]).representatives
