"""Law 1 for packed documents: a split step equals one device's, leaf by leaf.

Windows hold several documents, and padding behind the last; segments and positions go
wherever activations go: through loops over blocks, between stages, beside split tokens.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import attention
from jaxdist.layers.fused_attention import fused_attention
from jaxdist.models.config import ModelConfig
from jaxdist.train import build_layout
from jaxdist.train.count_words import words_total
from jaxdist.train.eval_step import make_eval_step
from jaxdist.train.objective import PackedNextToken

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=3, dropout=0.1)
MIXTRAL = ModelConfig(name="mixtral", size="tiny", depth=2, dropout=0.1)

LAYOUTS = {
    "data x tensor, sequence": (
        GPT2,
        dict(data=2, tensor=2, tensor_strategy="sequence"),
    ),
    "a loop, fsdp": (LLAMA, dict(data=2, fsdp=2, scan="on")),
    "tensor": (LLAMA, dict(tensor=2)),
    "tensor, filter": (GPT2, dict(tensor=2, tensor_strategy="filter")),
    "tensor, channel": (LLAMA, dict(tensor=2, tensor_strategy="channel")),
    "fsdp x sequence, remat": (
        LLAMA,
        dict(fsdp=2, tensor=2, tensor_strategy="sequence", remat=True),
    ),
    "a loop, fsdp x sequence": (
        GPT2,
        dict(fsdp=2, tensor=2, tensor_strategy="sequence", scan="on"),
    ),
    "experts x sequence": (
        MIXTRAL,
        dict(expert=2, tensor=2, tensor_strategy="sequence"),
    ),
    "a loop, remat": (LLAMA, dict(fsdp=4, remat=True, scan="on")),
    "a loop, remat to its middle": (
        LLAMA,
        dict(fsdp=2, remat=True, remat_end="block1", scan="on"),
    ),
    "microbatches, logits in chunks": (
        LLAMA,
        dict(data=2, microbatches=2, logits="chunks"),
    ),
}
OFTEN = ("data x tensor, sequence", "a loop, fsdp")
STAGES = {
    "1f1b": ({"data": 2}, PipelineConfig()),
    "gpipe, sequence": (
        {"tensor": 2, "tensor_strategy": "sequence"},
        PipelineConfig(schedule="gpipe"),
    ),
    "zb-h1": ({"fsdp": 2}, PipelineConfig(schedule="zb-h1")),
}


def pack(size):
    """Windows of 12 tokens: documents of all lengths, and padding in half of them."""
    rng = np.random.default_rng(5)
    segments = np.zeros((size, 12), np.int32)
    for row in segments:
        starts = np.flatnonzero(rng.random(12) < 0.3)
        for start in starts:
            row[start:] = start
    tokens = rng.integers(0, 64, (size, 13))
    target = tokens[:, 1:].copy()
    for number, row in enumerate(target):
        row[12 - number % 4 :] = -100
    return {
        "tokens": np.asarray(tokens[:, :-1], np.int32),
        "segments": segments,
        "target": np.asarray(target, np.int32),
        "bytes": np.asarray(rng.integers(0, 30, size), np.int32),
        "id": np.asarray(rng.permutation(1000)[:size], np.int32),
    }


def make(parts, config):
    task = replace(parts.make_task(config, jnp.float64), objective=PackedNextToken())
    return task, jax.tree.map(np.asarray, parts.make_state(task)), pack(8)


def compare(parts, config, axes, microbatches=1):
    with jax.enable_x64(True):
        task, state, batch = make(parts, config)
        want = jax.jit(lambda s, b: parts.one_device(task, s, b))(state, batch)
        layout = parts.layout_of(task.in_parts(microbatches), axes, batch)
        found = parts.run_layout(layout, state, batch)
        parts.assert_leaves_equal(found, want, 1e-9)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)
        for name in LAYOUTS
    ],
)
def test_a_step_equals_one_device(parts, name):
    compare(parts, *LAYOUTS[name])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "1f1b" else pytest.mark.slow)
        for name in STAGES
    ],
)
def test_stages_equal_one_device(parts, name):
    axes, order = STAGES[name]
    compare(parts, GPT2, {**axes, "pipe": 2, "order": order}, microbatches=2)


@pytest.mark.slow
def test_a_step_with_the_fused_kernel_equals_one_device(parts, monkeypatch):
    """The primitive of accelerators, which CPUs run written out."""

    def choose(platform, *_):
        return "splash" if platform == "tpu" else "einsum"

    used = []

    def fused(*given):
        used.append(given[3])
        return fused_attention(*given)

    monkeypatch.setattr(attention, "attention_kernel", choose)
    monkeypatch.setattr(attention, "fused_attention", fused)
    monkeypatch.setattr(build_layout, "mesh_platform", lambda mesh: "tpu")
    compare(parts, *LAYOUTS["a loop, fsdp"])
    assert used
    assert None not in used


CONTEXT = {
    "all_gather": (LLAMA, dict(context=2)),
    "ring": (LLAMA, dict(context=3, context_form="ring")),
    "all_to_all": (GPT2, dict(context=2, context_form="all_to_all")),
    "ring x data, a loop": (
        LLAMA,
        dict(context=2, data=2, context_form="ring", scan="on"),
    ),
    "all_gather x sequence, remat": (
        GPT2,
        dict(context=2, tensor=2, tensor_strategy="sequence", remat=True),
    ),
    "all_to_all x fsdp, microbatches": (
        LLAMA,
        dict(context=2, fsdp=2, context_form="all_to_all", microbatches=2),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "ring" else pytest.mark.slow)
        for name in CONTEXT
    ],
)
def test_tokens_on_several_devices_equal_one_device(parts, name):
    compare(parts, *CONTEXT[name])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["all_gather", "all_to_all"])
def test_stages_with_tokens_on_several_devices_equal_one_device(parts, form):
    axes = {"context": 2, "context_form": form, "pipe": 2, "order": PipelineConfig()}
    compare(parts, GPT2, axes, microbatches=2)


def test_an_evaluation_counts_the_tokens_of_all_devices(parts):
    config, sums = replace(LLAMA, depth=1, dropout=0.0), []
    # Scores are of runs, which have no float64.
    with jax.enable_x64(False):
        task, batch = parts.make_task(config, jnp.float32), pack(8)
        task = replace(task, objective=PackedNextToken())
        state = jax.tree.map(np.asarray, parts.make_state(task))
        for axes in ({}, {"context": 2}):
            layout = parts.layout_of(task, axes, batch)
            held = layout.state_layout.to_device(state)
            whole = batch | {"weight": np.ones(8, np.float32)}
            places = layout.batch_shardings(parts.shapes_of(whole))
            given = {key: jax.device_put(x, places[key]) for key, x in whole.items()}
            sums.append(jax.jit(make_eval_step(layout))(held.params, held.stats, given))
    assert words_total(sums[0]["tokens"]) == (batch["target"] != -100).sum()
    for key, want in sums[0].items():
        np.testing.assert_allclose(sums[1][key], want, rtol=1e-5, err_msg=key)
