"""Law 1 for language models: a split step equals one device's, leaf by leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import bind
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory, objective_for
from jaxdist.train.program import compile_program
from jaxdist.train.schedules import OptimConfig, optimizer
from jaxdist.train.step import Layout
from jaxdist.train.task import Task

pytestmark = pytest.mark.laws


def make_task(name, optim):
    config = ModelConfig(name=name, size="tiny", depth=2, dropout=0.3)
    return Task(
        model=model_factory(config),
        optimizer=optim,
        objective=objective_for(config),
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )


def make_state(task):
    """Random numbers throughout: zeros and ones would hide what they multiply."""
    rng = np.random.default_rng(1)

    def draw(x):
        return jnp.asarray(rng.normal(size=x.shape) * 0.3 + (x.ndim == 1), x.dtype)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), task.state)
    return type(zeros)(
        step=zeros.step,
        params=jax.tree.map(draw, task.state.params),
        stats=zeros.stats,
        opt=zeros.opt,
    )


def make_batch():
    rng = np.random.default_rng(2)
    windows = jnp.asarray(rng.integers(0, 64, (8, 13)), jnp.int32)
    ids = jnp.asarray(rng.permutation(1000)[:8], jnp.int32)
    return {"tokens": windows[:, :-1], "target": windows[:, 1:], "id": ids}


def one_device(task, state, batch):
    """The step as anyone would write it: no mesh, no shard_map, a mean over tokens."""
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)

    def mean_loss(params):
        model = nnx.merge(task.graph, params, state.stats, copy=True)
        model.train()
        bind(model, key, batch["id"])
        chosen = jax.nn.log_softmax(model(batch["tokens"]))
        return -jnp.take_along_axis(chosen, batch["target"][..., None], -1).mean()

    loss, grads = jax.value_and_grad(mean_loss)(state.params)
    with jax.numpy_dtype_promotion("standard"):  # optax's own promotion
        updates, opt = task.optimizer.update(grads, state.opt, state.params)
    return optax.apply_updates(state.params, updates), opt, loss


def assert_equal(got, want, tolerance=1e-9):
    norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(want[1])))
    named = zip(jax.tree.leaves_with_path(want), jax.tree.leaves(got), strict=True)
    for (path, *one), other in named:
        a, b = (np.asarray(x, np.float64) for x in (other, *one))
        limit = tolerance * max(np.abs(b).max(), 1e-6 * norm)
        assert np.abs(a - b).max() <= limit, jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", ["gpt2_small", "llama"])
def test_one_step(name):
    # One step of momentum leaves the gradient itself in the optimizer's state.
    check(name, dict(data=4, tensor=2), optax.sgd(0.1, momentum=0.9))


def test_a_clipped_step_of_adamw():
    """The length that is clipped is that of the whole batch's gradient."""
    config = OptimConfig(name="adamw", clip=0.5, weight_decay=0.1, beta2=0.99)
    check("llama", dict(data=4, tensor=2), optimizer(config, lambda step: 0.01))


def check(name, layout, optim):
    with jax.enable_x64(True):
        plan = Plan(mesh=MeshShape(**layout), idle=("tensor",))
        devices = jax.devices()[: plan.mesh.devices]
        where = Layout(plan=plan, mesh=build_mesh(plan, devices))
        task, batch = make_task(name, optim), make_batch()
        state = make_state(task)
        want = jax.jit(functools.partial(one_device, task))(state, batch)
        shapes = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in batch.items()}
        program = compile_program(task, where, shapes)
        new, loss = program.step(
            jax.device_put(state, where.whole), jax.device_put(batch, program.batch)
        )
        assert_equal((new.params, new.opt, loss), want)
