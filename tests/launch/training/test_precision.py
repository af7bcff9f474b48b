"""precision=bfloat16: narrow activations, and everything that is kept in float32."""

import jax
import jax.numpy as jnp
import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.job import make_model_spec, make_task
from jaxdist.meshes.build import build_mesh
from jaxdist.profile.flops import walk_jaxpr
from jaxdist.train.build_layout import build_layout
from jaxdist.train.step import make_train_step

WORDS = ("precision=bfloat16", "optim.ema=0.99", "optim.skip_nonfinite=1")


@pytest.mark.parametrize("words", [(), ("optim.accumulate=2",)])
def test_a_step_computes_in_bfloat16_and_keeps_float32(words):
    config = resolve_config("digits", [*WORDS, *words]).config
    task = make_task(config, make_model_spec(config), lambda step: 0.1)
    shapes = {"image": (8, 16, 16, 1), "label": (8,), "id": (8,)}
    kinds = {"image": jnp.float32, "label": jnp.int32, "id": jnp.int32}
    batch = {k: jax.ShapeDtypeStruct(s, kinds[k]) for k, s in shapes.items()}
    layout = build_layout(task, Plan(), build_mesh(Plan()), batch)
    traced = jax.jit(make_train_step(layout)).trace(task.state, batch)
    uses = [use.eqn for use in walk_jaxpr(traced.jaxpr.jaxpr)]
    heavy = {"conv_general_dilated", "dot_general"}
    operands = {
        value.aval.dtype
        for eqn in uses
        if eqn.primitive.name in heavy
        for value in eqn.invars
    }
    assert operands == {jnp.dtype("bfloat16")}
    new, metrics = traced.out_info
    before, after = (
        [leaf.dtype for leaf in jax.tree.leaves(state)] for state in (task.state, new)
    )
    assert before == after
    assert set(after) == {jnp.dtype("float32"), jnp.dtype("int32")}
    assert {x.dtype for x in jax.tree.leaves(metrics)} == {jnp.dtype("float32")}
