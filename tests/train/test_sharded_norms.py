"""Norms of whole leaves: as optax's own where leaves are whole, and right on shards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.train.nonfinite import keep_old_if_skipped, skip_nonfinite
from jaxdist.train.optimizers import OptimConfig, make_optimizer
from jaxdist.train.sharded_norms import (
    clip_by_global_norm,
    local_sum_squares,
    scale_by_trust_ratio,
)

RATE = 0.1
NAMES = ("sgd", "adamw", "lars", "lamb")


@pytest.fixture(autouse=True)
def promotion():
    """optax promotes its count of steps, which strict promotion would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def drawn(seed):
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (4, 3), "bias": (4,), "wide": (2, 8)}
    return {k: jnp.asarray(rng.normal(size=s), "f4") for k, s in shapes.items()}


def moved(optim, steps=3, grads=None):
    params = drawn(0)
    state = optim.init(params)
    for step in range(steps):
        updates, state = optim.update(grads or drawn(step + 1), state, params)
        params = optax.apply_updates(params, updates)
    return params


def kernels(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def assert_close(got, want, rtol=1e-6):
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("longest", [0.5, 100.0])
def test_clipping_is_that_of_optax(longest):
    grads = drawn(1)
    own, optaxes = clip_by_global_norm(longest), optax.clip_by_global_norm(longest)
    got, _ = own.update(grads, own.init(grads))
    want, _ = optaxes.update(grads, optaxes.init(grads))
    assert_close(got, want)


def test_the_trust_ratio_is_that_of_optax():
    params, updates = drawn(0), drawn(1)
    params["bias"] = jnp.zeros(4)
    own = scale_by_trust_ratio(0.3)
    optaxes = optax.scale_by_trust_ratio(trust_coefficient=0.3)
    got, _ = own.update(updates, own.init(params), params)
    want, _ = optaxes.update(updates, optaxes.init(params), params)
    assert_close(got, want)


def test_lars_is_that_of_optax():
    want = optax.lars(
        RATE, 0.2, weight_decay_mask=kernels, trust_ratio_mask=kernels, momentum=0.8
    )
    config = OptimConfig(name="lars", weight_decay=0.2, momentum=0.8)
    assert_close(moved(make_optimizer(config, lambda step: RATE)), moved(want))


def test_lamb_is_that_of_optax():
    want = optax.lamb(RATE, b1=0.8, b2=0.95, weight_decay=0.2, mask=kernels)
    config = OptimConfig(name="lamb", weight_decay=0.2, momentum=0.8, beta2=0.95)
    assert_close(moved(make_optimizer(config, lambda step: RATE)), moved(want))


@pytest.mark.parametrize("name", NAMES)
def test_shards_move_as_the_whole(name):
    """Each device updates its rows; lengths and verdicts are those of whole leaves."""
    config = OptimConfig(name=name, weight_decay=0.2, clip=0.5, skip_nonfinite=3)
    optim, spec = make_optimizer(config, lambda step: RATE), P("fsdp")
    mesh = Mesh(np.array(jax.devices()[:2]), ("fsdp",))

    def squares(tree):
        return lax.psum(local_sum_squares(tree), "fsdp")

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    def sharded(params, *grads):
        state = optim.init(params)
        for grad in grads:
            updates, state = optim.update(grad, state, params, squares=squares)
            params = optax.apply_updates(params, updates)
        return params

    got = sharded(drawn(0), *(drawn(step + 1) for step in range(3)))
    assert_close(got, moved(optim), rtol=1e-5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(wrong):
    optim, params = skip_nonfinite(optax.adam(RATE)), drawn(0)
    _, before = optim.update(drawn(1), optim.init(params), params)
    grads = drawn(2)
    grads["wide"] = grads["wide"].at[1, 3].set(wrong)
    updates, after = optim.update(grads, before, params)
    assert all(not u.any() for u in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, after.inner, before.inner)
    assert (int(after.consecutive), int(after.total)) == (1, 1)


def test_a_finite_gradient_after_it_moves_as_if_nothing_was():
    optim, params = skip_nonfinite(optax.adam(RATE)), drawn(0)
    nan = jax.tree.map(lambda g: g * np.nan, drawn(1))
    state = optim.init(params)
    for _ in range(2):
        _, state = optim.update(nan, state, params)
    assert int(state.consecutive) == 2
    updates, state = optim.update(drawn(1), state, params)
    want, _ = optax.adam(RATE).update(drawn(1), optax.adam(RATE).init(params), params)
    assert_close(updates, want, rtol=0)
    assert (int(state.consecutive), int(state.total)) == (0, 2)


def test_a_long_finite_gradient_is_no_reason_to_skip():
    """Its squares overflow in float32; it is a number all the same."""
    optim, params = skip_nonfinite(optax.sgd(RATE)), drawn(0)
    grads = jax.tree.map(lambda g: g * 1e30, drawn(1))
    _, state = optim.update(grads, optim.init(params), params)
    assert int(state.total) == 0


def test_what_is_beside_the_parameters_stays_too():
    optim, params = skip_nonfinite(optax.sgd(RATE)), drawn(0)
    nan = jax.tree.map(lambda g: g * np.nan, drawn(1))
    for grads, want in ((nan, 1.0), (drawn(1), 2.0)):
        _, state = optim.update(grads, optim.init(params), params)
        new, old = jnp.full(3, 2.0), jnp.full(3, 1.0)
        np.testing.assert_array_equal(
            keep_old_if_skipped(state, new, old), np.full(3, want)
        )
    plain = optax.sgd(RATE).init(params)
    np.testing.assert_array_equal(keep_old_if_skipped(plain, new, old), new)


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_takes_squares(name):
    optim, params = make_optimizer(OptimConfig(name=name), lambda step: RATE), drawn(0)
    optim.update(drawn(1), optim.init(params), params, squares=local_sum_squares)
