"""Law 1 for captions: clips, words and padding split over samples and over frames."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.tokens import BEGIN, END, PADDING
from jaxdist.layers import bind
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory, objective_for
from jaxdist.train.program import check, compile_program
from jaxdist.train.step import Layout
from jaxdist.train.task import Task

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

SAMPLES, WORDS, VOCABULARY = 8, 6, 20


def make_task():
    config = ModelConfig(name="s2vt", size="tiny", dropout=0.3)
    return Task(
        model=model_factory(config),
        objective=objective_for(config),
        # One step of momentum leaves the gradient itself in the optimizer's state.
        optimizer=optax.sgd(0.1, momentum=0.9),
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )


def make_state(task):
    """Random numbers throughout: zeros and ones would hide what they multiply."""
    rng = np.random.default_rng(1)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), task.state)

    def draw(x):
        return jnp.asarray(rng.normal(size=x.shape) * 0.3, x.dtype)

    return type(zeros)(
        step=zeros.step,
        params=jax.tree.map(draw, task.state.params),
        stats=zeros.stats,
        opt=zeros.opt,
    )


def make_batch():
    """Captions of all lengths, so that the devices' samples have unequal ones."""
    rng = np.random.default_rng(2)
    target = rng.integers(END + 1, VOCABULARY, (SAMPLES, WORDS))
    for row, length in zip(target, rng.permutation(SAMPLES) % WORDS + 1):
        row[length - 1], row[length:] = END, PADDING
    words = np.concatenate([np.full((SAMPLES, 1), BEGIN), target[:, :-1]], 1)
    return {
        "clip": jnp.asarray(rng.random((SAMPLES, 5, 16, 16, 3)), jnp.float64),
        "words": jnp.asarray(words, jnp.int32),
        "target": jnp.asarray(target, jnp.int32),
        "id": jnp.asarray(rng.permutation(1000)[:SAMPLES], jnp.int32),
    }


def one_device(task, state, batch):
    """The step as anyone would write it: no mesh, no shard_map, words counted."""
    key = jax.random.fold_in(jax.random.key(task.seed), state.step)

    def mean_loss(params):
        model = nnx.merge(task.graph, params, state.stats, copy=True)
        model.train()
        bind(model, key, batch["id"])
        chosen = jax.nn.log_softmax(model(batch["clip"], batch["words"]))
        each = -jnp.take_along_axis(chosen, batch["target"][..., None], -1)[..., 0]
        return each.mean(-1, where=batch["target"] != PADDING).mean()

    loss, grads = jax.value_and_grad(mean_loss)(state.params)
    updates, opt = task.optimizer.update(grads, state.opt, state.params)
    return optax.apply_updates(state.params, updates), opt, loss


def assert_equal(got, want, tolerance=1e-9):
    norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(want[1])))
    named = zip(jax.tree.leaves_with_path(want), jax.tree.leaves(got), strict=True)
    for (path, *one), other in named:
        a, b = (np.asarray(x, np.float64) for x in (other, *one))
        limit = tolerance * max(np.abs(b).max(), 1e-6 * norm)
        assert np.abs(a - b).max() <= limit, jax.tree_util.keystr(path)


def layout_of(axes):
    plan = Plan(mesh=MeshShape(**axes), idle=("tensor",) if "tensor" in axes else ())
    devices = jax.devices()[: plan.mesh.devices]
    return Layout(plan=plan, mesh=build_mesh(plan, devices))


def shapes_of(batch):
    return {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in batch.items()}


@pytest.mark.parametrize(
    "axes",
    [
        dict(data=4, tensor=2),
        dict(data=2, spatial_h=2, spatial_w=2, tensor=2),
    ],
    ids=["data 4 x idle 2", "data 2 x spatial_h 2 x spatial_w 2 x idle 2"],
)
def test_one_step(axes):
    with jax.enable_x64(True):
        task, batch, where = make_task(), make_batch(), layout_of(axes)
        state = make_state(task)
        want = jax.jit(functools.partial(one_device, task))(state, batch)
        program = compile_program(task, where, shapes_of(batch))
        # The step donates its state, and the one of the reference is kept.
        own = jax.device_put(jax.tree.map(jnp.copy, state), where.whole)
        new, loss = program.step(own, jax.device_put(batch, program.batch))
        assert_equal((new.params, new.opt, loss), want)


def test_frames_are_not_split_along_time():
    where = layout_of(dict(spatial_d=2))
    with (
        jax.enable_x64(True),
        pytest.raises(BadInput, match="nothing is split along spatial_d"),
    ):
        check(make_task(), where, shapes_of(make_batch()))
