"""Law 1 of mixtures of experts: a step equals one device's, whatever is split."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.count_words import words_total
from jaxdist.train.eval_step import make_eval_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

LOSSES = {"balance_weight": 0.3, "router_z_weight": 0.2}
MIXTRAL = ModelConfig(name="mixtral", size="tiny", **LOSSES)
DEEP = ModelConfig(name="mixtral", size="tiny", depth=2, **LOSSES)
# Two slots a sample of 12 tokens: most choices of popular experts are dropped.
SLOTS = ModelConfig(name="mixtral", size="tiny", capacity_factor=0.5, **LOSSES)
DEEP_SLOTS = replace(SLOTS, depth=2)
# A llama with experts, more of which a token takes than a device has.
WIDE = ModelConfig(name="llama", size="tiny", experts=4, chosen_experts=3)
# Tokens between pairs of layers are split as well.
SEQUENCE = {"tensor": 2, "tensor_strategy": "sequence"}

LAYOUTS = {
    "data 2 x tensor 2": (MIXTRAL, {"data": 2, "tensor": 2}),
    "fsdp 2, slots": (SLOTS, {"fsdp": 2}),
    "context 2": (MIXTRAL, {"context": 2}),
    "context 2, slots": (SLOTS, {"context": 2}),
    "context 3, slots": (SLOTS, {"context": 3}),
    "tensor 2, filter": (MIXTRAL, {"tensor": 2, "tensor_strategy": "filter"}),
    "tensor 2, channel": (SLOTS, {"tensor": 2, "tensor_strategy": "channel"}),
    "tensor 2, sequence": (MIXTRAL, SEQUENCE),
    "tensor 4, sequence, slots": (
        replace(SLOTS, kv_heads=4),
        SEQUENCE | {"tensor": 4},
    ),
    "data 2 x tensor 2, sequence, slots": (SLOTS, {"data": 2, **SEQUENCE}),
    "context 2 x tensor 2, sequence, ring": (
        WIDE,
        {"context": 2, "context_form": "ring", **SEQUENCE},
    ),
    "expert 2": (WIDE, {"expert": 2}),
    "expert 4": (MIXTRAL, {"expert": 4}),
    "expert 4, slots": (SLOTS, {"expert": 4}),
    "expert 2 x data 2, slots": (SLOTS, {"expert": 2, "data": 2}),
    "expert 2 x fsdp 2": (MIXTRAL, {"expert": 2, "fsdp": 2}),
    "expert 2 x tensor 2, slots": (SLOTS, {"expert": 2, "tensor": 2}),
    "expert 2 x tensor 2 x fsdp 2": (MIXTRAL, {"expert": 2, "tensor": 2, "fsdp": 2}),
    "expert 2 x tensor 2 x fsdp 2, sequence": (
        WIDE,
        {"expert": 2, "fsdp": 2, **SEQUENCE},
    ),
    "expert 2 x tensor 2, sequence, a loop, blocks remade": (
        DEEP,
        {"expert": 2, "scan": "on", "remat": True, **SEQUENCE},
    ),
    "expert 2 x context 2 x tensor 2, sequence, slots": (
        SLOTS,
        {"expert": 2, "context": 2, **SEQUENCE},
    ),
    "expert 2 x context 2": (MIXTRAL, {"expert": 2, "context": 2}),
    "expert 2 x context 2 x fsdp 2, ring": (
        MIXTRAL,
        {"expert": 2, "context": 2, "fsdp": 2, "context_form": "ring"},
    ),
    "expert 2 x context 2 x tensor 2, slots": (
        SLOTS,
        {"expert": 2, "context": 2, "tensor": 2},
    ),
    "expert 2 x context 2, all_to_all": (
        WIDE,
        {"expert": 2, "context": 2, "context_form": "all_to_all"},
    ),
    "expert 2 x context 2, slots, a loop, blocks remade": (
        DEEP_SLOTS,
        {"expert": 2, "context": 2, "scan": "on", "remat": True},
    ),
    "expert 2, a loop": (DEEP, {"expert": 2, "scan": "on"}),
    "expert 2, a loop, blocks remade": (
        DEEP,
        {"expert": 2, "scan": "on", "remat": True},
    ),
    "expert 2, blocks remade": (DEEP, {"expert": 2, "remat": True}),
    "expert 2 x fsdp 2, zero 1": (SLOTS, {"expert": 2, "fsdp": 2, "zero": 1}),
    "expert 2, chunks": (MIXTRAL, {"expert": 2, "logits": "chunks"}),
    "expert 2 x idle 2": (
        SLOTS,
        {"expert": 2, "replica": 2, "replicated_axes": ("replica",)},
    ),
}


HYBRIDS = {
    "expert 2 x data 2": (MIXTRAL, {"expert": 2, "data": 2}),
    "expert 2 x fsdp 2, slots": (SLOTS, {"expert": 2, "fsdp": 2}),
    "expert 2 x tensor 2": (MIXTRAL, {"expert": 2, "tensor": 2}),
    "expert 2 x context 2, slots": (SLOTS, {"expert": 2, "context": 2}),
    "expert 2 x tensor 2, sequence, slots": (SLOTS, {"expert": 2, **SEQUENCE}),
}


@pytest.mark.parametrize("layout", HYBRIDS)
def test_hybrids_equal_one_device(assert_equal_one_device, layout):
    config, axes = HYBRIDS[layout]
    assert_equal_one_device(config, axes, size=4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, axes, size=4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8])
def test_in_float32(assert_equal_one_device, size):
    axes = {"expert": 2, "data": 2}
    assert_equal_one_device(MIXTRAL, axes, jnp.float32, size, tolerance=1e-5)


def staged(schedule="1f1b", **axes):
    """The axes of a layout of two stages, and more of them."""
    chunks = 2 if schedule == "interleaved" else 1
    return {
        "pipe": 2,
        "order": PipelineConfig(schedule=schedule, chunks=chunks),
        **axes,
    }


MICROBATCHES = {
    "expert 2": (DEEP, {"expert": 2}),
    "pipe 2": (DEEP, staged()),
    "pipe 2 x fsdp 2, zb-h1": (DEEP, staged("zb-h1", fsdp=2)),
    "pipe 2 x expert 2, one block": (MIXTRAL, staged(expert=2)),
    "pipe 2 x expert 2": (DEEP, staged(expert=2)),
    "pipe 2 x expert 2, slots, gpipe": (DEEP_SLOTS, staged("gpipe", expert=2)),
    "pipe 2 x expert 2, interleaved": (DEEP, staged("interleaved", expert=2)),
    "pipe 2 x expert 2, eager-1f1b": (DEEP, staged("eager-1f1b", expert=2)),
    "pipe 2 x expert 2, zb-h1": (DEEP, staged("zb-h1", expert=2)),
    "pipe 2 x expert 2, slots, zb-h1": (DEEP_SLOTS, staged("zb-h1", expert=2)),
    "pipe 2 x expert 4": (DEEP, staged(expert=4)),
    "pipe 2 x expert 2, blocks remade": (DEEP, staged(expert=2, remat=True)),
    "pipe 2 x expert 2 x fsdp 2": (DEEP, staged(expert=2, fsdp=2)),
    "pipe 2 x expert 2 x fsdp 2, zero 1": (DEEP, staged(expert=2, fsdp=2, zero=1)),
    "pipe 2 x expert 2 x tensor 2, slots": (DEEP_SLOTS, staged(expert=2, tensor=2)),
    "pipe 2 x expert 2 x tensor 2, sequence": (DEEP, staged(expert=2, **SEQUENCE)),
    "pipe 2 x tensor 2, sequence, slots, zb-h1": (
        DEEP_SLOTS,
        staged("zb-h1", **SEQUENCE),
    ),
    "pipe 2 x expert 2 x context 2": (DEEP, staged(expert=2, context=2)),
    "pipe 2 x expert 2 x context 2, slots": (DEEP_SLOTS, staged(expert=2, context=2)),
}


# Balance is that of a microbatch, as batch statistics are: of two devices the first
# halves of both devices' samples are one.
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=[] if "one block" in name else pytest.mark.slow)
        for name in MICROBATCHES
    ],
)
def test_microbatches_equal_those_of_one_device(parts, layout):
    (config, axes), found = MICROBATCHES[layout], []
    with jax.enable_x64(True):
        task = parts.make_task(config, jnp.float64).in_parts(2)
        batch = parts.make_batch(config, jnp.float64, 8)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        devices = axes.get("expert", 1) * axes.get("fsdp", 1)
        order = np.arange(8).reshape(devices, 2, -1).swapaxes(0, 1).reshape(-1)
        for mesh, places in (({}, order), (axes, np.arange(8))):
            own = {key: x[places] for key, x in batch.items()}
            where = parts.layout_of(task, mesh, own)
            found.append(parts.run_layout(where, jax.tree.map(np.array, state), own))
        parts.assert_leaves_equal(found[1], found[0], 1e-9)


# One device has no such step: stages alone do.
@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipedream", "pipedream-2bw"])
def test_updates_without_a_flush_equal_those_of_stages_alone(parts, schedule):
    config, found = replace(DEEP, tied_head=False), []
    with jax.enable_x64(True):
        task = parts.make_task(config, jnp.float64).in_parts(4)
        batch = parts.make_batch(config, jnp.float64, 16)
        state = jax.tree.map(np.asarray, parts.make_state(task))
        order = np.arange(16).reshape(2, 4, -1).swapaxes(0, 1).reshape(-1)
        for axes, places in (({}, order), ({"expert": 2}, np.arange(16))):
            own = {key: x[places] for key, x in batch.items()}
            where = parts.layout_of(task, staged(schedule, **axes), own)
            found.append(parts.run_layout(where, jax.tree.map(np.array, state), own))
        parts.assert_leaves_equal(found[1], found[0], 1e-9)


# A capacity is that of training: an evaluation drops nothing.
def test_an_evaluation_equals_one_device_without_capacity(parts):
    sums, dropless = [], ModelConfig(name="mixtral", size="tiny")
    with jax.enable_x64(False):
        state = jax.tree.map(
            np.asarray, parts.make_state(parts.make_task(SLOTS, jnp.float32))
        )
        batch = parts.make_batch(SLOTS, jnp.float32, 4)
        weight = {"weight": np.ones(4, np.float32)}
        split = {"expert": 2, "context": 2, **SEQUENCE}
        for config, mesh in ((dropless, {}), (SLOTS, split)):
            task = parts.make_task(config, jnp.float32)
            layout = parts.layout_of(task, mesh, batch)
            places = layout.batch_shardings(parts.shapes_of(batch | weight))
            laid = jax.device_put(batch | weight, places)
            run = jax.jit(make_eval_step(layout))
            sums.append(jax.tree.map(np.asarray, run(state.params, state.stats, laid)))
    for key, want in sums[0].items():
        np.testing.assert_allclose(sums[1][key], want, rtol=1e-5)
    assert words_total(sums[1]["answers"]) == batch["target"].size
