"""Fifty steps of a Transformer have the same losses however they are split."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.models.config import ModelConfig
from jaxdist.train.program import compile_program, initial_state

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

STEPS = 50
MODEL = ModelConfig(name="llama", size="tiny", depth=2, dropout=0.1)
ADAM = optax.adamw(1e-2)
LAYOUTS = {
    "data 4": dict(data=4),
    "tensor 2": dict(tensor=2),
    "tensor 2, sequence": dict(tensor=2, tensor_strategy="sequence"),
    "fsdp 4": dict(fsdp=4),
    "data 2 x fsdp 2 x tensor 2": dict(data=2, fsdp=2, tensor=2),
}


def losses_of(step, state, batches):
    losses = []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    return np.array(losses)


def make_batches(parts):
    """Batches that differ, of sequences that can be learnt: each token is the last + 7."""
    first = parts.make_batch(MODEL, jnp.float64, 8)
    for step in range(STEPS):
        start = (np.arange(8) * 5 + step * 3)[:, None]
        tokens = ((start + 7 * np.arange(13)) % 64).astype(np.int32)
        yield {**first, "tokens": tokens[:, :-1], "target": tokens[:, 1:]}


@pytest.fixture(scope="module")
def one_device(parts):
    with jax.enable_x64(True):
        task = parts.make_task(MODEL, jnp.float64, optimizer=ADAM)
        plain = functools.partial(parts.one_device, task)

        def step(state, batch):
            params, stats, opt, metrics = plain(state, batch)
            fields = dict(step=state.step + 1, params=params, stats=stats, opt=opt)
            return type(state)(**fields), metrics

        # Compiled as well: first weights drawn one operation at a time differ in a bit.
        state = jax.jit(task.init)()
        return losses_of(jax.jit(step), state, make_batches(parts))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_losses_are_those_of_one_device(layout, parts, one_device):
    with jax.enable_x64(True):
        task = parts.make_task(MODEL, jnp.float64, optimizer=ADAM)
        first, *_ = make_batches(parts)
        where = parts.layout_of(task, LAYOUTS[layout], first)
        program = compile_program(where)
        placed = (
            jax.device_put(b, program.batch_shardings) for b in make_batches(parts)
        )
        losses = losses_of(program.compiled_step, initial_state(where), placed)
    assert losses[-1] < losses[0] / 2
    np.testing.assert_allclose(losses, one_device, rtol=1e-9)
