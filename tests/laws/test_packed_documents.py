"""Law 1 for packed documents: a split step equals one device's, leaf by leaf.

Windows hold several documents, and padding behind the last; segments and positions go
wherever activations go: through loops over blocks, between stages, beside split tokens.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.layers import attention
from jaxdist.layers.fused_attention import fused_attention
from jaxdist.models.config import ModelConfig
from jaxdist.train import build_layout
from jaxdist.train.objective import PackedNextToken

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=3, dropout=0.1)

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


def test_packed_windows_are_not_split_over_the_context_axis(parts):
    with jax.enable_x64(True):
        task, _, batch = make(parts, LLAMA)
        with pytest.raises(BadInput, match=r"plan\.mesh\.context=1"):
            parts.layout_of(task, dict(context=2), batch)
