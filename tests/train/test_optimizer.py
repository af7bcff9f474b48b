"""Optimizers: each moves as its paper says, and norms and biases never decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.layers import LSTM
from jaxdist.train.optimizers import OptimConfig, make_optimizer

NAMES = ("sgd", "adamw", "lars", "lamb", "muon")
RATE = 0.1


@pytest.fixture(autouse=True)
def promotion():
    """optax promotes its count of steps, which strict promotion would refuse."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def rate(step):
    return RATE


def drawn(seed):
    rng = np.random.default_rng(seed)
    kernel, bias = rng.normal(size=(3, 4)), rng.normal(size=4)
    return {"kernel": jnp.asarray(kernel, "f4"), "bias": jnp.asarray(bias, "f4")}


def moved(config, grads=None, steps=1):
    optim, params = make_optimizer(config, rate), drawn(0)
    state = optim.init(params)
    for _ in range(steps):
        updates, state = optim.update(grads or drawn(1), state, params)
        params = optax.apply_updates(params, updates)
    return params


def kernels(params):
    """Tell the leaves that decay: norms and biases are vectors."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def test_sgd_is_what_it_was():
    """Bit for bit: decay added to the gradient, then Nesterov momentum."""
    for decay in (0.0, 1e-2):
        sgd = optax.sgd(rate, momentum=0.9, nesterov=True)
        if decay:
            sgd = optax.chain(optax.add_decayed_weights(decay, mask=kernels), sgd)
        params = drawn(0)
        state = sgd.init(params)
        for _ in range(3):
            updates, state = sgd.update(drawn(1), state, params)
            params = optax.apply_updates(params, updates)
        found = moved(OptimConfig(weight_decay=decay), steps=3)
        for key in params:
            np.testing.assert_array_equal(found[key], params[key])


def test_a_first_step_of_adamw_is_the_sign_and_the_decay():
    config = OptimConfig(name="adamw", weight_decay=0.2)
    start, grads, end = drawn(0), drawn(1), moved(config)
    sign = RATE * np.sign(grads["kernel"])
    want = start["kernel"] - sign - RATE * 0.2 * start["kernel"]
    np.testing.assert_allclose(end["kernel"], want, rtol=1e-4, atol=1e-5)
    bias = start["bias"] - RATE * np.sign(grads["bias"])
    np.testing.assert_allclose(end["bias"], bias, rtol=1e-4, atol=1e-5)


def test_a_first_step_of_lars_has_the_length_of_the_weights():
    start, end = drawn(0), moved(OptimConfig(name="lars"))
    step, weights = (
        np.linalg.norm(x) for x in (end["kernel"] - start["kernel"], start["kernel"])
    )
    np.testing.assert_allclose(step, RATE * 0.001 * weights, rtol=1e-4)


def test_a_first_step_of_lamb_has_the_length_of_the_weights():
    start, end = drawn(0), moved(OptimConfig(name="lamb"))
    step, weights = (
        np.linalg.norm(x) for x in (end["kernel"] - start["kernel"], start["kernel"])
    )
    np.testing.assert_allclose(step, RATE * weights, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_biases_never_decay(name):
    plain, decayed = (moved(OptimConfig(name=name, weight_decay=d)) for d in (0, 0.5))
    np.testing.assert_array_equal(plain["bias"], decayed["bias"])
    assert np.abs(plain["kernel"] - decayed["kernel"]).max() > 1e-6


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_of_several_gates_never_decay(name):
    params = nnx.state(LSTM(3, 4, rngs=nnx.Rngs(0)), nnx.Param)
    grads = jax.tree.map(jnp.ones_like, params)

    def ends(decay):
        optim = make_optimizer(OptimConfig(name=name, weight_decay=decay), rate)
        return optim.update(grads, optim.init(params), params)[0]

    plain, decayed = ends(0.0), ends(0.5)
    np.testing.assert_array_equal(plain["bias"][...], decayed["bias"][...])
    for key in ("kernel", "recurrent"):
        assert np.abs(plain[key][...] - decayed[key][...]).max() > 1e-6


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_long_gradient_is_shortened_as_a_whole(name):
    grads = drawn(1)
    length = float(optax.tree.norm(grads))
    shorter = jax.tree.map(lambda g: g * (0.5 / length), grads)
    clipped = moved(OptimConfig(name=name, clip=0.5))
    want = moved(OptimConfig(name=name), shorter)
    for key in want:
        np.testing.assert_allclose(clipped[key], want[key], rtol=1e-6)
    kept = moved(OptimConfig(name=name, clip=2 * length))
    for key, value in moved(OptimConfig(name=name)).items():
        np.testing.assert_array_equal(kept[key], value)


@pytest.mark.parametrize(("key", "value"), [("clip", -1.0), ("beta2", 1.0)])
def test_numbers_out_of_range_are_refused(key, value):
    with pytest.raises(BadInput, match=rf"optim\.{key}"):
        OptimConfig(**{key: value})


def test_muon_is_that_of_optax_at_a_constant_gradient():
    """Momentum is all of it then, however it is debiased; tables move by AdamW."""
    config = OptimConfig(name="muon", momentum=0.95, weight_decay=0.1)
    muon = optax.contrib.muon(
        RATE,
        beta=0.95,
        weight_decay=0.1,
        weight_decay_mask=kernels,
        consistent_rms=0.2,
        adam_b1=0.95,
        adam_learning_rate=RATE,
    )
    params = drawn(0)
    state = muon.init(params)
    for _ in range(2):
        updates, state = muon.update(drawn(1), state, params)
        params = optax.apply_updates(params, updates)
    got = moved(config, steps=2)
    np.testing.assert_allclose(got["kernel"], params["kernel"], rtol=1e-5)


def test_muon_moves_kernels_by_orthogonal_matrices_and_tables_by_adamw():
    rng = np.random.default_rng(0)
    shapes = {"conv": {"kernel": (3, 3, 2, 8)}, "tokens": {"embedding": (9, 4)}}
    grads = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), "f4"),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    optim = make_optimizer(OptimConfig(name="muon"), lambda step: 1.0)
    updates, _ = optim.update(grads, optim.init(grads), grads)
    moved = np.linalg.svd(updates["conv"]["kernel"].reshape(18, 8))[1]
    # Five iterations bring singular values near 1, not to it.
    np.testing.assert_allclose(moved / (0.2 * 18**0.5), 1, atol=0.35)
    adamw = make_optimizer(OptimConfig(name="adamw"), lambda step: 1.0)
    want, _ = adamw.update(grads, adamw.init(grads), grads)
    got, want = updates["tokens"]["embedding"], want["tokens"]["embedding"]
    np.testing.assert_allclose(got, want, rtol=1e-6)
