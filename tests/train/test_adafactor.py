"""Adafactor: optax's own where leaves are whole, and state of rows and columns alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdist.train.adafactor import adafactor
from jaxdist.train.optimizers import (
    OptimConfig,
    make_optimizer,
    weight_decay_mask,
)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "wide": (4, 9),
        "tall": (12, 4),
        "square": (5, 5),
        "conv": (3, 3, 8, 6),
        "small": (2, 3),
        "bias": (7,),
        "scale": (),
    }
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_that_of_optax(decay):
    rate = optax.constant_schedule(0.03)
    own = adafactor(rate, weight_decay=decay, mask=weight_decay_mask, min_factored=4)
    # There the decay is not multiplied by the rate.
    theirs = optax.adafactor(
        rate,
        min_dim_size_to_factor=4,
        weight_decay_rate=0.03 * decay,
        weight_decay_mask=weight_decay_mask,
    )
    a = b = tree(0)
    state, other = own.init(a), theirs.init(b)
    for step in range(5):
        updates, state = own.update(tree(step + 1), state, a)
        a = optax.apply_updates(a, updates)
        updates, other = theirs.update(tree(step + 1), other, b)
        b = optax.apply_updates(b, updates)
    for name, leaf in b.items():
        np.testing.assert_allclose(a[name], leaf, rtol=1e-9, err_msg=name)


def test_moments_of_matrices_are_a_row_and_a_column():
    made = make_optimizer(OptimConfig(name="adafactor"), lambda step: 0.01)
    kernel = jax.ShapeDtypeStruct((256, 512), jnp.float32)
    state = jax.eval_shape(made.init, {"kernel": kernel})
    assert sum(x.size for x in jax.tree.leaves(state)) < 256 + 512 + 8
