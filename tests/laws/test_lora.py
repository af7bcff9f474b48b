"""Law 1 and the ledger of adapters: a split step of LoRA equals one device's.

Frozen weights are split as they are without adapters, and nothing of theirs is summed
or kept for an optimizer.
"""

from dataclasses import asdict, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.lora import ADAPTER_PATTERNS, LoraConfig
from jaxdist.train.program import compile_program
from jaxdist.train.state import named_leaves
from jaxdist.train.task import ModelSpec

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

LAYOUTS = {
    "data 2 x fsdp 2 x tensor 2": dict(data=2, fsdp=2, tensor=2),
    "fsdp 2, blocks in a loop": dict(data=2, fsdp=2, scan="on"),
    "pipe 2 x data 2": dict(pipe=2, data=2),
    "fsdp 2 x tensor 2, sequence, remade": dict(
        fsdp=2, tensor=2, tensor_strategy="sequence", remat=True
    ),
    "fsdp 4": dict(fsdp=4),
    "fsdp 2, zero 1": dict(fsdp=2, zero=1),
    "data 2 x tensor 2, channel": dict(data=2, tensor=2, tensor_strategy="channel"),
    "fsdp 2 x tensor 2, filter": dict(fsdp=2, tensor=2, tensor_strategy="filter"),
    "fsdp 2 x context 2": dict(fsdp=2, context=2),
    "fsdp 2, microbatches": dict(fsdp=2, microbatches=2),
    "fsdp 2, microbatches in a loop": dict(fsdp=2, microbatches=2, scan="on"),
    "fsdp 2, remade in a loop": dict(fsdp=2, remat=True, scan="on"),
    "fsdp 2, some remade": dict(fsdp=2, remat=True, remat_end="block1"),
    "pipe 2 x fsdp 2": dict(pipe=2, fsdp=2),
    "pipe 2 x data 2, zero bubble": dict(
        pipe=2, order=PipelineConfig(schedule="zb-h1"), data=2, microbatches=2
    ),
}
ALWAYS = tuple(LAYOUTS)[:1]


def lora_task(parts, name="llama", targets=("all-linear",), depth=2, rank=2):
    config = ModelConfig(name=name, size="tiny", depth=depth)
    spec = ModelSpec(
        maker="jaxdist.models.registry:make_model",
        settings=asdict(config),
        lora=asdict(LoraConfig(rank=rank, alpha=3, targets=targets)),
    )
    task = replace(
        parts.make_task(config, jnp.float64), model=spec, trained=ADAPTER_PATTERNS
    )
    return task, parts.make_batch(config, jnp.float64, 8)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow)
        for name in LAYOUTS
    ],
)
def test_adapters_move_as_on_one_device(layout, parts):
    task, batch = lora_task(parts, depth=3 if "loop" in layout else 2)
    state = parts.make_state(task)
    want = jax.jit(partial(parts.one_device, task))(state, batch)
    where = parts.layout_of(task, LAYOUTS[layout], batch)
    params, stats, *rest = parts.run_layout(where, state, batch)
    # Of what the network keeps besides, one device tells batch statistics alone.
    parts.assert_leaves_equal((params, want[1], *rest), want, 1e-9)
    jax.tree.map(np.testing.assert_array_equal, stats, state.stats)


def test_frozen_weights_are_split_and_have_no_gradient(parts):
    task, batch = lora_task(parts, targets=("query", "value"))
    where = parts.layout_of(task, dict(fsdp=2, tensor=2), batch)
    trained = named_leaves(task.state.params)
    assert {name.rpartition("/")[2] for name in trained} == {"lora_a", "lora_b"}
    assert len(trained) == 2 * 2 * 2
    opt = named_leaves(task.state.opt)
    assert not any(name.endswith(("kernel", "embedding")) for name in opt)
    specs = named_leaves(where.specs.stats)
    # As without adapters.
    free = replace(task, trained=(), model=replace(task.model, lora={}))
    whole = named_leaves(
        parts.layout_of(free, dict(fsdp=2, tensor=2), batch).specs.params
    )
    assert specs == whole
    sums = [row for row in where.ledger.rows if row.what == "gradients"]
    adapters = sum(x.size for x in trained.values()) * 8
    assert 0 < sum(row.payload for row in sums) <= 2 * adapters


def test_a_network_with_new_adapters_returns_what_it_did(parts):
    task, batch = lora_task(parts)
    base = replace(task, trained=(), model=replace(task.model, lora={}))
    networks = [
        jax.jit(lambda each, tokens: each(tokens))(merged(one), batch["tokens"])
        for one in (base, task)
    ]
    np.testing.assert_array_equal(*networks)


def merged(task):
    from flax import nnx

    state = task.init()
    network = nnx.merge(task.graph, state.params, state.stats)
    network.eval()
    return network


def test_flops_of_adapters_are_those_of_the_step(parts):
    task, batch = lora_task(parts)
    program = compile_program(parts.layout_of(task, dict(data=2, tensor=2), batch))
    work = {each.layer: each for each in program.layer_flops}
    for name in ("block1.attention.query", "block1.mlp.down", "block0.attention.key"):
        assert work[name].traced == pytest.approx(work[name].planned, rel=1e-3), name
