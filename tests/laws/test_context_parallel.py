"""Law 1 where devices share the tokens of samples: a step equals one device's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import attention
from jaxdist.models.config import ModelConfig
from jaxdist.train import build_layout
from jaxdist.train.count_words import words_total
from jaxdist.train.eval_step import make_eval_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", dropout=0.3)
LLAMA = ModelConfig(name="llama", size="tiny", depth=2)
QWEN = ModelConfig(
    name="llama",
    size="tiny",
    depth=2,
    tied_head=False,
    qkv_bias=True,
    rope_scaling="dynamic",
    rope_factor=2.0,
    rope_context=8,
)

LAYOUTS = {
    "context 2 x data 2": (GPT2, {"context": 2, "data": 2}),
    "ring, context 3, a loop": (
        LLAMA,
        {"context": 3, "context_form": "ring", "scan": "on"},
    ),
    "ring, context 2": (GPT2, {"context": 2, "context_form": "ring"}),
    "context 2 x tensor 2": (LLAMA, {"context": 2, "tensor": 2}),
    "context 2 x tensor 2, a head of its own": (QWEN, {"context": 2, "tensor": 2}),
    "context 3, a loop": (LLAMA, {"context": 3, "scan": "on"}),
    "context 3 x tensor 2, sequence": (
        GPT2,
        {"context": 3, "tensor": 2, "tensor_strategy": "sequence"},
    ),
    "context 2 x tensor 2, filter": (
        LLAMA,
        {"context": 2, "tensor": 2, "tensor_strategy": "filter"},
    ),
    "context 2 x tensor 2, channel": (
        LLAMA,
        {"context": 2, "tensor": 2, "tensor_strategy": "channel"},
    ),
    "context 2 x idle 2": (
        GPT2,
        {"context": 2, "replica": 2, "replicated_axes": ("replica",)},
    ),
    "context 2, blocks remade": (LLAMA, {"context": 2, "remat": True}),
    "ring, context 2 x fsdp 2 x data 2": (
        GPT2,
        {"context": 2, "fsdp": 2, "data": 2, "context_form": "ring"},
    ),
    "ring, context 3, a loop, blocks remade": (
        LLAMA,
        {"context": 3, "context_form": "ring", "scan": "on", "remat": True},
    ),
    "all_to_all, context 2 x fsdp 2, zero 1": (
        LLAMA,
        {"context": 2, "fsdp": 2, "zero": 1, "context_form": "all_to_all"},
    ),
    "context 2 x data 2, microbatches": (
        GPT2,
        {"context": 2, "data": 2, "microbatches": 2},
    ),
}


def test_heads_of_all_tokens_beside_tensor_equal_one_device(assert_equal_one_device):
    axes = {"context": 2, "tensor": 2, "context_form": "all_to_all"}
    assert_equal_one_device(GPT2, axes, size=4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, axes, size=4)


@pytest.fixture
def fused(monkeypatch):
    """Lay out as for a TPU, whose kernel takes any window and dtype here."""

    def choose(platform, *_):
        return "splash" if platform == "tpu" else "einsum"

    used, whole = [], attention.blockwise_attention

    def blockwise(query, key, value, segments, ring, fused):
        used.append(fused)
        return whole(query, key, value, segments, ring, fused)

    monkeypatch.setattr(attention, "TILE", 1)
    monkeypatch.setattr(attention, "attention_kernel", choose)
    monkeypatch.setattr(attention, "blockwise_attention", blockwise)
    monkeypatch.setattr(build_layout, "mesh_platform", lambda mesh: "tpu")
    yield
    assert any(used)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(
    "form", ["ring", pytest.param("all_gather", marks=pytest.mark.slow)]
)
def test_blocks_of_a_fused_kernel(assert_equal_one_device, form):
    axes = {"context": 3, "context_form": form, "scan": "on"}
    assert_equal_one_device(LLAMA, axes, size=4)


@pytest.fixture(scope="module")
def uneven_samples(parts):
    """A task, a state and a batch of which samples have unlike numbers of targets."""
    with jax.enable_x64(True):
        task = parts.make_task(LLAMA, jnp.float64)
        batch = parts.make_batch(LLAMA, jnp.float64, 4)
        target = batch["target"].copy()
        target[0, 5:], target[1, :9], target[2] = -100, -100, -100
        state = jax.tree.map(np.asarray, parts.make_state(task))
    return task, state, batch | {"target": target}


@pytest.mark.parametrize(
    "logits", ["whole", pytest.param("chunks", marks=pytest.mark.slow)]
)
def test_targets_that_count_lie_on_some_devices(parts, uneven_samples, logits):
    with jax.enable_x64(True):
        task, state, batch = uneven_samples
        want = jax.jit(functools.partial(parts.one_device, task))(state, batch)
        axes = {"context": 2, "data": 2, "logits": logits}
        layout = parts.layout_of(task, axes, batch)
        got = parts.run_layout(layout, jax.tree.map(np.array, state), batch)
        parts.assert_leaves_equal(got, want, 1e-9)


@pytest.mark.parametrize(
    ("form", "schedule"),
    [
        ("all_gather", "1f1b"),
        ("all_to_all", "zb-h1"),
        ("all_gather", "zb-h1"),
    ],
)
@pytest.mark.slow
def test_stages_equal_the_step_without(parts, uneven_samples, form, schedule):
    found = []
    with jax.enable_x64(True):
        task, state, batch = uneven_samples
        task = task.in_parts(2)
        for order in ({}, {"pipe": 2, "order": PipelineConfig(schedule=schedule)}):
            axes = {"context": 2, "context_form": form, **order}
            layout = parts.layout_of(task, axes, batch)
            found.append(parts.run_layout(layout, jax.tree.map(np.array, state), batch))
        parts.assert_leaves_equal(found[1], found[0], 1e-9)


@pytest.mark.parametrize(
    "axes",
    [{"context": 3}, pytest.param({"context": 2, "pipe": 2}, marks=pytest.mark.slow)],
)
def test_an_evaluation_counts_tokens_of_all_devices(parts, uneven_samples, axes):
    with jax.enable_x64(False):
        task = parts.make_task(LLAMA, jnp.float32)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        batch = uneven_samples[-1] | {"weight": np.ones(4, np.float32)}
        sums = []
        for mesh in ({}, axes):
            trained = {key: x for key, x in batch.items() if key != "weight"}
            layout = parts.layout_of(task, mesh, trained)
            held = layout.state_layout.to_device(state)
            places = layout.batch_shardings(parts.shapes_of(batch))
            given = {key: jax.device_put(x, places[key]) for key, x in batch.items()}
            run = jax.jit(make_eval_step(layout))
            sums.append(run(held.params, held.stats, given))
        for key, want in sums[0].items():
            np.testing.assert_allclose(sums[1][key], want, rtol=1e-5)
        answers = words_total(sums[1]["answers"])
        assert answers == (batch["target"] != -100).sum()
