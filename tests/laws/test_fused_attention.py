"""Law 1 with fused attention: a step equals the written one on one device, float64.

The primitive of accelerators, which CPUs run written out, in every kind of layout.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import attention
from jaxdist.layers.fused_attention import fused_attention
from jaxdist.models.config import ModelConfig
from jaxdist.train import build_layout

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=4)

LAYOUTS = {
    "data and tensor": (GPT2, {"data": 2, "tensor": 2}),
    "a loop, fsdp and sequence": (
        LLAMA,
        {"fsdp": 2, "tensor": 2, "tensor_strategy": "sequence", "scan": "on"},
    ),
    "a loop, dropout": (GPT2, {"data": 2, "fsdp": 2, "scan": "on"}),
    "a loop, fsdp, remat": (LLAMA, {"fsdp": 4, "remat": True, "scan": "on"}),
    "remat": (GPT2, {"data": 2, "remat": True}),
}


@pytest.fixture
def on_accelerators(monkeypatch):
    """Lay out as for a TPU, whose kernel takes any window and dtype here."""

    def choose(platform, *_):
        return "splash" if platform == "tpu" else "einsum"

    used = []

    def fused(*given):
        used.append(given)
        return fused_attention(*given)

    monkeypatch.setattr(attention, "attention_kernel", choose)
    monkeypatch.setattr(attention, "fused_attention", fused)
    monkeypatch.setattr(build_layout, "mesh_platform", lambda mesh: "tpu")
    yield
    assert used


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("on_accelerators")
def test_a_step_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, axes, size=8)


@pytest.mark.usefixtures("on_accelerators")
def test_stages_equal_the_step_without(parts):
    beside = {"data": 2, "tensor": 2, "tensor_strategy": "sequence"}
    found = []
    with jax.enable_x64(True):
        task = parts.make_task(LLAMA, jnp.float64).in_parts(4)
        batch = parts.make_batch(LLAMA, jnp.float64, 8)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        for stages in ({}, {"pipe": 2, "order": PipelineConfig()}):
            layout = parts.layout_of(task, beside | stages, batch)
            found.append(parts.run_layout(layout, state, batch))
        parts.assert_leaves_equal(found[1], found[0], 1e-9)
