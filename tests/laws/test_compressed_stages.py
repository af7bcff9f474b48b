"""Compressed gradients in stages: the sums without stages, and nothing is lost."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.state import named_leaves

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

TIED = ModelConfig(name="gpt2_small", size="tiny", depth=2, dropout=0.2)
"""The first and the last stage share its table."""
BESIDE = {
    "data": {"data": 2},
    "data x tensor": {"data": 2, "tensor": 2},
    "data x fsdp": {"data": 2, "fsdp": 2},
}
ALIKE = {**BESIDE, "pipe": {"pipe": 2, "data": 2}}
WAYS = ("int8", "int4", "bf16", "fp8", "random_k", "top_k", "sparse", "aligned")


def rarely(cases, *often):
    """Cases of the full matrix, but for those named."""
    return [
        pytest.param(name, marks=[] if name in often else pytest.mark.slow)
        for name in cases
    ]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def given(parts):
    """Return a task of momentum, its first state and a batch."""
    with jax.enable_x64(True):
        task = dataclasses.replace(parts.make_task(TIED, jnp.float64), microbatches=4)
        return task, parts.make_state(task), parts.make_batch(TIED, jnp.float64, 16)


def after(parts, given, axes, times=1):
    """Return a layout, audited, and the state as devices hold it after some steps."""
    task, state, batch = jax.tree.map(
        lambda x: np.array(x) if isinstance(x, np.ndarray) else x, given
    )
    layout = parts.layout_of(task, axes, batch)
    program = compile_program(layout)
    assert program.differences == ()
    held = layout.state_layout.to_device(state)
    held = dataclasses.replace(held, feedback=initial_state(layout).feedback)
    now = jax.device_put(held, jax.tree.map(lambda x: x.sharding, layout.state))
    laid = jax.device_put(parts.padded(batch, layout), program.batch_shardings)
    for number in range(1, times + 1):
        now, _ = program.run(number, now, laid)
    parts.assert_copies_equal(now)
    return layout, now


@pytest.fixture(scope="module")
def exact(parts, given):
    """Return what a step in stages makes without compression; compiled once."""

    @functools.cache
    def made(beside):
        with jax.enable_x64(True):
            layout, state = after(parts, given, {"pipe": 2, **BESIDE[beside]})
            return layout.to_checkpoint(state)

    return made


def numbers(tree):
    """Return the arrays of a tree by name."""
    return {name: np.float64(x) for name, x in named_leaves(tree).items()}


def traces(state):
    """Return the gradients that momentum has seen, by name."""
    return numbers(state.opt[0].trace)


@pytest.mark.parametrize("beside", rarely(BESIDE, "data"))
@pytest.mark.parametrize("via", rarely(("top_k", "sparse", "ring"), "top_k"))
def test_with_all_numbers_sent_a_step_is_the_exact_one(
    parts, given, exact, via, beside
):
    reduce = ReductionConfig(algorithm=via, density=1.0, min_compressed_elements=0)
    stages = {"pipe": 2, **BESIDE[beside]}
    layout, got = after(parts, given, {**stages, "reduce": reduce})
    want, got = numbers(exact(beside)), numbers(layout.to_checkpoint(got))
    for name, leaf in want.items():
        most = max(np.abs(leaf).max(), 1e-6)
        assert np.abs(leaf - got[name]).max() <= 1e-9 * most, name


@pytest.mark.parametrize("beside", rarely(BESIDE, "data"))
@pytest.mark.parametrize("via", rarely(WAYS, "int8"))
def test_what_is_sent_and_what_is_left_are_the_gradient(
    parts, given, exact, via, beside
):
    reduce = ReductionConfig(algorithm=via, density=0.05, min_compressed_elements=0)
    stages = {"pipe": 2, **BESIDE[beside]}
    layout, got = after(parts, given, {**stages, "reduce": reduce})
    stored, want = layout.to_checkpoint(got), traces(exact(beside))
    left = stored.feedback.residual
    assert left
    assert any(x.any() for x in left.values())
    for name, used in traces(stored).items():
        whole = used + left[name].sum(0) if name in left else used
        most = max(np.abs(want[name]).max(), 1e-6)
        assert np.abs(whole - want[name]).max() <= 1e-6 * most, name


@pytest.mark.parametrize("via", rarely(("top_k", "int8", "sparse"), "top_k"))
@pytest.mark.parametrize("beside", rarely(ALIKE, "pipe", "data x tensor"))
def test_what_several_devices_have_stays_equal(parts, given, via, beside):
    """Also where others along that axis have parts of the leaves beside it."""
    reduce = ReductionConfig(algorithm=via, density=0.05, min_compressed_elements=0)
    after(parts, given, {**ALIKE[beside], "reduce": reduce}, 2)


def test_leaves_that_are_compressed_are_those_without_stages(parts, given):
    """And a checkpoint has what is left of them by their own names and shapes."""
    reduce = ReductionConfig(
        algorithm="top_k", density=0.05, min_compressed_elements=200, momentum=0.9
    )
    layout, state = after(parts, given, {"pipe": 2, "data": 2, "reduce": reduce}, 2)
    stored = layout.to_checkpoint(state)
    plain = parts.layout_of(given[0], {"data": 2, "reduce": reduce}, given[2])
    want, got = plain.state.feedback, stored.feedback
    assert 0 < len(want.residual) < len(want.velocity)
    for kept in ("residual", "velocity"):
        one, other = getattr(want, kept), getattr(got, kept)
        assert {n: x.shape for n, x in one.items()} == {
            n: x.shape for n, x in other.items()
        }
    again = layout.from_checkpoint(stored)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        assert (np.asarray(one) == np.asarray(other)).all()
