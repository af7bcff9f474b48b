"""An evaluation that is asked to end leaves no score, and takes no more batches."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.core.plan import Plan
from jaxdist.layers import Linear
from jaxdist.meshes.build import build_mesh
from jaxdist.train.build_layout import build_layout
from jaxdist.train.eval_step import make_eval_step
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.objective import Regression
from jaxdist.train.task import Task

SUMS = {"loss": 2.0, "correct": 1.0, "answers": 2.0, "samples": 2.0}


@pytest.mark.parametrize(("at", "taken"), [(1, 1), (3, 3), (9, 5)])
def test_it_ends_at_the_batch_at_which_it_is_asked_to(at, taken):
    seen, asked = [], []

    def score(batch):
        seen.append(batch)
        return {key: np.float32(value) for key, value in SUMS.items()}

    def ends():
        asked.append(None)
        return len(asked) >= at

    evaluator = Evaluator(
        layout=None,
        batch_shapes={},
        batches=lambda: contextlib.nullcontext(range(5)),
        should_stop=ends,
        _compiled_step=score,
    )
    found = evaluator(SimpleNamespace(evaluated=()))
    assert len(seen) == taken
    assert bool(found) == (at > 5)


class LogLoss(Regression):
    """A loss that is not finite for a sample of zeros, which padding is."""

    def losses(self, outputs, batch):
        return -jnp.log(batch["target"][:, 0]) + 0 * outputs[:, 0]


def test_a_loss_that_is_not_finite_for_padding_does_not_count():
    task = Task(
        model=lambda rngs: Linear(1, 1, rngs=rngs),
        optimizer=optax.sgd(0.1),
        objective=LogLoss(),
    )
    x = jnp.ones((4, 1))
    batch = {"image": x, "target": x.at[2:].set(0), "id": jnp.arange(4)}
    layout = build_layout(
        task, Plan(), build_mesh(Plan()), jax.eval_shape(lambda: batch)
    )
    state, weight = task.init(), jnp.array([1.0, 1.0, 0.0, 0.0])
    step = make_eval_step(layout)
    found = step(state.params, state.stats, batch | {"weight": weight})
    assert float(found["loss"]) == 0
