"""Schedule-free optimizers: the state's parameters are optax's evaluation parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from jaxdist.core.errors import BadInput
from jaxdist.train.optimizers import (
    OptimConfig,
    make_learning_rate,
    make_optimizer,
    weight_decay_mask,
)
from jaxdist.train.schedule_free import gradient_params

DECAY = optax.add_decayed_weights(0.3, weight_decay_mask)
BASES = {
    "sgd": lambda rate: optax.chain(DECAY, optax.scale_by_learning_rate(rate)),
    "adamw": lambda rate: optax.chain(
        optax.scale_by_rms(0.999, eps_in_sqrt=False, bias_correction=True),
        DECAY,
        optax.scale_by_learning_rate(rate),
    ),
}


def gradient(params):
    return jax.tree.map(lambda x: 2 * x + jnp.sin(x), params)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_parameters_are_those_that_optax_evaluates(name, clip):
    config = OptimConfig(
        name=f"schedule_free_{name}", momentum=0.8, lr=0.05, clip=clip, weight_decay=0.3
    )
    rate = make_learning_rate(config, 20, 4, 256)
    own = make_optimizer(config, rate)
    theirs = contrib.schedule_free(BASES[name](rate), rate, b1=0.8)
    if clip:
        theirs = optax.chain(optax.clip_by_global_norm(clip), theirs)
    rng = np.random.default_rng(0)
    x = {"kernel": jnp.asarray(rng.normal(size=(3, 4))), "bias": jnp.ones(4)}
    y, state, other = x, own.init(x), theirs.init(x)
    for _ in range(12):
        grads = gradient(gradient_params(x, state))
        updates, state = own.update(grads, state, x)
        x = optax.apply_updates(x, updates)
        updates, other = theirs.update(gradient(y), other, y)
        y = optax.apply_updates(y, updates)
    inner = other[1] if clip else other
    want = contrib.schedule_free_eval_params(inner, y)
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    for a, b in zip(
        jax.tree.leaves(gradient_params(x, state)), jax.tree.leaves(y), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_other_optimizers_take_the_gradient_at_their_parameters():
    params = {"kernel": jnp.ones((2, 2))}
    assert gradient_params(params, optax.adam(0.1).init(params)) is params


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_rate_stays(warmup):
    config = OptimConfig(name="schedule_free_sgd", lr=0.5, warmup_epochs=warmup)
    rate = make_learning_rate(config, 100, 5, 256)
    assert float(rate(99)) == float(rate(5 * warmup)) == 0.5
    assert float(rate(0)) == (0 if warmup else 0.5)
    # Runs ask for the rates of many steps at once.
    assert rate(np.arange(7)).shape == (7,)


@pytest.mark.parametrize(
    "how", [dict(ema=0.9), dict(milestones=(3,)), dict(momentum=0)]
)
def test_an_average_of_another_kind_is_refused(how):
    with pytest.raises(BadInput, match="an average of its own"):
        OptimConfig(name="schedule_free_adamw", **how)
