"""Images whose rows do not divide, from the source to the score, as with whole images."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.device_feed import eval_feed, train_feed
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.sources import ArraySource
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.train.build_layout import build_layout
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.task import Task


def source():
    rng = np.random.default_rng(0)
    return ArraySource(
        {"image": rng.random((11, 13, 7, 1)), "label": rng.integers(0, 10, 11)}
    )


def shapes(batch, **more):
    return {
        "image": jax.ShapeDtypeStruct((batch, 13, 7, 1), jnp.float32),
        "label": jax.ShapeDtypeStruct((batch,), jnp.int32),
        "id": jax.ShapeDtypeStruct((batch,), jnp.int32),
        **{k: jax.ShapeDtypeStruct((batch,), dtype) for k, dtype in more.items()},
    }


@contextlib.contextmanager
def users_types():
    """Promotion as users have it: argmax counts in 64 bits here, labels in 32."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def trained(axes, **how):
    """Losses of two steps, and the score behind them."""
    plan = Plan(mesh=MeshShape(**axes), **how)
    mesh = build_mesh(plan, jax.devices()[: plan.mesh.devices])
    task = Task(
        model=model_factory(ModelConfig(width=4)),
        optimizer=optax.sgd(0.1),
        dtype=jnp.float64,
        param_dtype=jnp.float64,
    )
    layout = build_layout(task, plan, mesh, shapes(4))
    program, test = compile_program(layout), shapes(8, weight="float32")
    state, losses = initial_state(layout), []
    order = GlobalShuffleOrder(num_samples=11, batch=4, seed=1)
    how = dict(
        shapes=layout.padded_shapes(shapes(4)), augmentation=Augmentation(shift=1)
    )
    with train_feed(source(), order, program.batch_shardings, **how) as feed:
        for _ in range(2):
            state, metrics = program.compiled_step(state, next(feed))
            losses.append(float(metrics.loss))
    batches = functools.partial(
        eval_feed,
        source(),
        8,
        layout.batch_shardings(test),
        shapes=layout.padded_shapes(test),
    )
    score = Evaluator(layout=layout, batch_shapes=test, batches=batches)
    return losses, score(state)


@pytest.fixture(scope="module")
def whole():
    """What comes of whole images."""
    with users_types():
        return trained(dict(data=2))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("axes", "how"),
    [
        (dict(data=2, spatial_h=4), {}),
        (dict(data=2, spatial_h=4), dict(spatial_end="block2")),
        (dict(spatial_h=4), dict(spatial_end="block2", spatial_end_mode="samples")),
    ],
)
def test_losses_and_score_are_those_of_whole_images(axes, how, whole):
    with users_types():
        losses, score = trained(axes, **how)
    np.testing.assert_allclose(losses, whole[0], rtol=1e-9)
    near = pytest.approx(whole[1]["loss"], rel=1e-9)
    assert score == whole[1] | {"loss": near}
