"""Layouts keep nothing of those before them; their steps sum nothing twice."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory, objective_for
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import trace_train_step
from jaxdist.train.sharded_norms import clip_by_global_norm
from jaxdist.train.task import Task


def subclasses(kind):
    return {kind}.union(*map(subclasses, type.__subclasses__(kind)))


@pytest.mark.parametrize("name", ["alexnet", "gpt2_small"])
def test_layouts_after_the_first_define_no_classes(name):
    config = ModelConfig(name=name, size="tiny")
    seen = []
    for count in (2, 4):
        task = Task(
            model=model_factory(config),
            optimizer=optax.sgd(0.1),
            objective=objective_for(config),
        )
        plan = Plan(mesh=MeshShape(tensor=count), remat=("*",))
        mesh = build_mesh(plan, jax.devices()[:count])
        build_layout(task, plan, mesh, batch_shapes(name))
        seen.append(len(subclasses(nnx.Module)))
    assert seen[0] == seen[1]


def test_clipping_and_the_record_share_the_norm_of_the_gradient():
    config, sums = ModelConfig(name="gpt2_small", size="tiny", depth=1), []
    for recorded in (False, True):
        task = Task(
            model=model_factory(config),
            optimizer=optax.chain(clip_by_global_norm(1.0), optax.sgd(0.1)),
            objective=objective_for(config),
            gradient_norm=recorded,
        )
        plan = Plan(mesh=MeshShape(fsdp=2))
        mesh = build_mesh(plan, jax.devices()[:2])
        layout = build_layout(task, plan, mesh, batch_shapes("gpt2_small"))
        traced = str(trace_train_step(layout).jaxpr)
        sums.append((traced.count(" psum"), len(layout.ledger.rows)))
    assert sums[0] == sums[1]


def batch_shapes(name):
    def of(*shape, dtype=jnp.int32):
        return jax.ShapeDtypeStruct(shape, dtype)

    if name == "gpt2_small":
        return {"tokens": of(8, 12), "target": of(8, 12), "id": of(8)}
    return {"image": of(8, 64, 64, 3, dtype=jnp.float32), "label": of(8), "id": of(8)}
