"""Law 1 of schedule-free optimizers: the gradient is taken between average and z."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.optimizers import OptimConfig, make_optimizer
from jaxdist.train.schedule_free import gradient_params

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

NETWORK = ModelConfig(name="llama", size="tiny", depth=2)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def start(parts):
    def draw(name, **how):
        config = OptimConfig(name=name, weight_decay=0.1, **how)
        optimizer = make_optimizer(config, optax.constant_schedule(0.05))
        task = replace(parts.make_task(NETWORK, jnp.float64), optimizer=optimizer)
        state = parts.make_state(task)
        z = jax.tree.map(lambda x: 0.9 * x + 0.01, state.params)
        opt = jax.tree.map(np.asarray, optimizer.init(z))
        return task, replace(state, opt=opt), parts.make_batch(NETWORK, jnp.float64, 8)

    return draw


def one_device(parts, task, state, batch):
    """The step of one device from y, which ends at the average."""
    at = gradient_params(state.params, state.opt)

    def update(grads, opt, params):
        moved, opt = task.optimizer.update(grads, opt, state.params)
        return jax.tree.map(lambda x, m, y: x + m - y, state.params, moved, params), opt

    moves = optax.GradientTransformation(task.optimizer.init, update)
    from_y = SimpleNamespace(**vars(task) | {"optimizer": moves, "graph": task.graph})
    return parts.one_device(from_y, replace(state, params=at), batch)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("schedule_free_adamw", dict(data=2, fsdp=2, tensor=2)),
        pytest.param("schedule_free_sgd", dict(fsdp=4), marks=pytest.mark.slow),
        pytest.param(
            "schedule_free_adamw", dict(pipe=2, fsdp=2), marks=pytest.mark.slow
        ),
        pytest.param(
            "schedule_free_sgd",
            dict(fsdp=2, tensor=2, scan="on"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_step_equals_one_device(name, axes, start, parts):
    task, state, batch = start(name, clip=0.5, skip_nonfinite=2)
    want = jax.jit(partial(one_device, parts, task))(state, batch)
    where = parts.layout_of(task, axes, batch)
    params, _, *rest = parts.run_layout(where, state, batch)
    parts.assert_leaves_equal((params, want[1], *rest), want, 1e-9)


@pytest.mark.parametrize(
    ("axes", "remedy"),
    [
        (dict(fsdp=2, zero=1), "plan.zero=3"),
        (
            dict(pipe=2, order=PipelineConfig(schedule="pipedream"), microbatches=4),
            "plan.pipe.schedule=1f1b",
        ),
        (
            dict(replica=2, outer=OuterConfig(sync_interval=2)),
            "plan.mesh.data=2 plan.mesh.replica=1",
        ),
    ],
)
def test_where_z_is_not_beside_the_average(axes, remedy, start, parts):
    task, _, batch = start("schedule_free_adamw")
    with pytest.raises(BadInput, match="schedule-free optimizers do not go") as caught:
        parts.layout_of(task, axes, batch)
    assert caught.value.remedy[0] == remedy
