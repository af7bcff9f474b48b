"""A process that lays many plans out keeps nothing of those it is done with."""

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


def batch_shapes(name):
    def of(*shape, dtype=jnp.int32):
        return jax.ShapeDtypeStruct(shape, dtype)

    if name == "gpt2_small":
        return {"tokens": of(8, 12), "target": of(8, 12), "id": of(8)}
    return {"image": of(8, 64, 64, 3, dtype=jnp.float32), "label": of(8), "id": of(8)}
