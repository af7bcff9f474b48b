"""Law 1 with activations kept by name or moved to the host: a step equals one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=4, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=4)

LAYOUTS = {
    "products": (LLAMA, {"data": 2, "offload": ("block*.mlp.up", "block*.mlp.gate")}),
    "what blocks are given": (LLAMA, {"fsdp": 2, "offload": ("block?",)}),
    "all of a block, and dropout": (GPT2, {"data": 2, "offload": ("block*",)}),
    "two loops of two": (LLAMA, {"fsdp": 4, "offload": ("block[01]*",)}),
    "behind remat": (
        GPT2,
        {"fsdp": 2, "tensor": 2, "remat": True, "offload": ("block?", "*.up")},
    ),
    "half computed again": (
        LLAMA,
        {"data": 2, "remat": True, "remat_end": "block2", "offload": ("*.attention",)},
    ),
    "sequence and microbatches": (
        LLAMA,
        {
            **{"fsdp": 2, "tensor": 2, "tensor_strategy": "sequence"},
            **{"microbatches": 2, "offload": ("block*.mlp.up",)},
        },
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_offloads_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, axes, size=8)


KEPT = {"remat": True, "remat_saves": ("*.attention", "*.up")}
SAVES = {
    "unrolled": {"data": 2},
    "a loop": {"fsdp": 2, "scan": "on"},
    "until a block": {"data": 2, "tensor": 2, "remat_end": "block2"},
}


@pytest.mark.parametrize("layout", SAVES)
def test_a_step_that_keeps_some_layers_equals_one_device(
    assert_equal_one_device, layout
):
    assert_equal_one_device(GPT2, KEPT | SAVES[layout], size=8)


def test_stages_that_keep_some_layers_equal_the_step_without(parts):
    found = []
    with jax.enable_x64(True):
        task = parts.make_task(GPT2, jnp.float64).in_parts(4)
        batch = parts.make_batch(GPT2, jnp.float64, 8)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        for plan in ({"data": 2}, {"data": 2, "pipe": 2, **KEPT}):
            layout = parts.layout_of(task, plan, batch)
            found.append(parts.run_layout(layout, state, batch))
        parts.assert_leaves_equal(found[1], found[0], 1e-9)
