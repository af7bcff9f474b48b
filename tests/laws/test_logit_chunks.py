"""Law 1 with logits in chunks: a step equals the one with whole logits, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.block_protocol import LogitsLayer
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import Embed, Linear
from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=4)

LAYOUTS = {
    "data": (GPT2, {"data": 2}),
    "fsdp and microbatches": (LLAMA, {"fsdp": 2, "microbatches": 2}),
    "tensor and microbatches": (LLAMA, {"data": 2, "tensor": 2, "microbatches": 2}),
    "a loop, fsdp and sequence": (
        LLAMA,
        {"fsdp": 2, "tensor": 2, "tensor_strategy": "sequence", "scan": "on"},
    ),
    "remat": (GPT2, {"data": 2, "tensor": 2, "remat": True}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, {**axes, "logits": "chunks"}, size=8)


class Untied(nnx.Module):
    """A network of one's own, whose last layer has weights and biases of its own."""

    answers = LogitsLayer(layer="head", is_output=True)

    def __init__(self, config, *, dtype=None, rngs):
        self.embed = Embed(64, 32, rngs=rngs)
        self.embed.dtype = dtype  # flax would fix that of the first weights
        self.head = Linear(32, 64, dtype=dtype, rngs=rngs)

    def __call__(self, tokens):
        return self.head(jnp.tanh(self.embed(tokens)))


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"data": 2, "tensor": 2}], ids=str)
def test_a_layer_of_its_own_makes_the_logits(assert_equal_one_device, axes):
    axes = {**axes, "logits": "chunks"}
    assert_equal_one_device(GPT2, axes, size=8, network=Untied)


@pytest.mark.parametrize(
    "schedule", [pytest.param("gpipe", marks=pytest.mark.slow), "1f1b", "zb-h1"]
)
def test_stages_equal_the_step_without(parts, schedule):
    stages = {"pipe": 2, "order": PipelineConfig(schedule=schedule)}
    chunks = stages | {"logits": "chunks"}
    found = []
    with jax.enable_x64(True):
        task = parts.make_task(LLAMA, jnp.float64).in_parts(4)
        batch = parts.make_batch(LLAMA, jnp.float64, 8)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        for plan in ({}, chunks, chunks | {"tensor": 2}):
            layout = parts.layout_of(task, {"data": 2} | plan, batch)
            assert bool(layout.logits_product) == bool(plan)
            found.append(parts.run_layout(layout, state, batch))
        for one in found[1:]:
            parts.assert_leaves_equal(one, found[0], 1e-9)
