"""Shares: every layer's work on a device, against the same step on one device."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.train.build_layout import build_layout
from jaxdist.train.step import make_train_step
from jaxdist.train.task import Task
from jaxdist.train.work_shares import layer_work_shares

TASK = Task(model=model_factory(ModelConfig(width=4)), optimizer=optax.sgd(0.1))
SHAPES = {
    "image": jax.ShapeDtypeStruct((8, 16, 16, 1), jnp.float32),
    "label": jax.ShapeDtypeStruct((8,), jnp.int32),
    "id": jax.ShapeDtypeStruct((8,), jnp.int32),
}


def layout_of(idle=(), **axes):
    plan = Plan(mesh=MeshShape(**axes), replicated_axes=idle)
    mesh = build_mesh(plan, jax.devices()[: plan.mesh.devices])
    return build_layout(TASK, plan, mesh, SHAPES)


def shares(idle=(), **axes):
    return {s.layer: s for s in layer_work_shares(layout_of(idle, **axes))}


def test_data_gives_every_layer_its_part():
    found = shares(data=4)
    assert len(found) > 15
    for name, share in found.items():
        if "conv" in name:
            assert share.share == 1 / 4, name
        elif name:  # norms and biases: what is of a channel alone is not split
            assert share.share == pytest.approx(1 / 4, abs=0.02), name


@pytest.mark.parametrize(
    "axes", [dict(data=4), dict(fsdp=2), dict(spatial_h=2), dict(tensor=2)], ids=str
)
def test_the_plan_says_what_layers_with_a_kernel_do(axes):
    planned, found = layout_of(**axes).ledger.layer_flops, shares(**axes)
    assert {"stem.conv", "block2.shortcut", "head.dense"} <= set(planned)
    for name, flops in planned.items():
        assert found[name].device == pytest.approx(flops, rel=0.01), name


def test_a_split_of_images_ends_where_positions_are_averaged():
    found = shares(spatial_h=2)
    assert found["block2.conv2"].repeats == pytest.approx(12 / 11, rel=0.01)
    assert found["block1.norm1"].repeats == pytest.approx(1, rel=0.02)
    assert found["head.dense"].repeats == 2


def test_an_idle_axis_repeats_everything():
    assert {s.repeats for s in shares(("tensor",), tensor=2).values()} == {2}


def test_all_layers_together_are_what_xla_counts():
    layout = layout_of(data=2, spatial_h=2)
    step = jax.jit(make_train_step(layout))
    counted = step.lower(layout.state, SHAPES).cost_analysis()["flops"]
    ours = sum(s.device for s in layer_work_shares(layout))
    assert ours == pytest.approx(counted, rel=0.01)
