"""Runs of equal blocks that a step goes through as loops."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Linear
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.models.registry import (
    image_shape,
    model_factory,
    objective_for,
    takes_tokens,
)
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import lower_program
from jaxdist.train.task import Task

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=4)


def layout_of(config=GPT2, model=None, frozen=(), image=None, **how):
    how.setdefault("mesh", MeshShape(data=2))
    plan = Plan(**{"scan": "on"} | how)
    task = Task(
        model=model or model_factory(config),
        optimizer=optax.sgd(0.1),
        objective=objective_for(config),
        frozen=frozen,
    )
    size = (8,)
    if takes_tokens(config):
        keys = {"tokens": (*size, 12), "target": (*size, 12)}
        batch = {k: jax.ShapeDtypeStruct(s, jnp.int32) for k, s in keys.items()}
    else:
        shape = (*size, *(image or image_shape(config)))
        batch = {
            "image": jax.ShapeDtypeStruct(shape, jnp.float32),
            "label": jax.ShapeDtypeStruct(size, jnp.int32),
        }
    batch["id"] = jax.ShapeDtypeStruct(size, jnp.int32)
    mesh = build_mesh(plan, jax.devices()[: plan.mesh.devices])
    return build_layout(task, plan, mesh, batch)


def loops(**given):
    return [scan.blocks for scan in layout_of(**given).block_scans]


def test_equal_blocks_are_one_loop():
    (scan,) = layout_of().block_scans
    assert scan.blocks == ("block0", "block1", "block2", "block3")
    assert "attention/query/kernel" in scan.names
    names = [leaf.name for leaf in layout_of().param_shardings]
    each = dict(zip(scan.names, scan.indices, strict=True))["mlp/up/bias"]
    assert [names[i] for i in each] == [f"{block}/mlp/up/bias" for block in scan.blocks]


def test_on_cpus_blocks_are_no_loop_unless_asked_for():
    assert loops(scan="auto") == loops(scan="off") == []


def test_each_stage_of_a_residual_network_has_a_loop():
    config = ModelConfig(name="resnet50", classes=10)
    runs = loops(config=config, image=(64, 64, 3), mesh=MeshShape(data=2))
    # Stages of 3, 4, 6 and 3 blocks, of which the first is unlike the others.
    assert [len(run) for run in runs] == [2, 3, 5, 2]


def test_a_block_with_other_rules_is_in_no_loop():
    rest = [("block1", "block2", "block3")]
    assert loops(frozen=("block0.*",)) == rest
    assert loops(remat=True, remat_end="block1") == rest


class Tied(Chain):
    """Blocks that share their parameters."""

    def __init__(self, config, shared, *, dtype=None, rngs):
        del config, dtype
        first = Linear(16, 16, rngs=rngs)
        blocks = [first if shared else Linear(16, 16, rngs=rngs) for _ in range(3)]
        flat = nnx.Sequential(lambda x: x.reshape(x.shape[0], -1)[:, :16])
        made = {f"layer{i}": block for i, block in enumerate(blocks)}
        head = Linear(16, 10, rngs=rngs)
        super().__init__({"flat": flat, **made, "head": head})


@pytest.mark.parametrize("shared", [False, True])
def test_blocks_that_share_parameters_are_no_loop(shared):
    def model(*, dtype=None, rngs):
        return Tied(None, shared, dtype=dtype, rngs=rngs)

    config = ModelConfig()
    found = loops(config=config, model=model)
    assert found == ([] if shared else [("layer0", "layer1", "layer2")])


@pytest.mark.parametrize(
    "mesh",
    [pytest.param(MeshShape(data=2), marks=pytest.mark.slow), MeshShape(fsdp=2)],
)
def test_products_and_collectives_do_not_grow_with_depth(mesh):
    def count(depth, word):
        config = ModelConfig(name="llama", size="tiny", depth=depth)
        return lower_program(layout_of(config, mesh=mesh)).step.as_text().count(word)

    for word in ("dot_general", "all_gather", "reduce_scatter"):
        assert count(2, word) == count(6, word)


def test_work_is_told_layer_by_layer():
    work = {w.layer: w for w in lower_program(layout_of()).layer_flops}
    for i in range(4):
        each = work[f"block{i}.mlp.up"]
        assert each.traced == work["block0.mlp.up"].traced
        assert each.traced == pytest.approx(each.planned, rel=1e-3)
