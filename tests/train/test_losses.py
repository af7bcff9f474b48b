"""The loss of a sample, with and without auxiliary heads."""

import jax.numpy as jnp
import numpy as np

from jaxdist.train.objective import Classification

losses = Classification().losses


def test_auxiliary_heads_weigh_three_tenths():
    batch = {"label": jnp.asarray([0, 2])}
    rng = np.random.default_rng(0)
    main, *others = (jnp.asarray(rng.normal(size=(2, 3)), jnp.float32) for _ in "abc")
    want = losses(main, batch) + 0.3 * sum(losses(each, batch) for each in others)
    np.testing.assert_allclose(losses((main, *others), batch), want, rtol=1e-6)


def test_without_a_preference_the_loss_is_the_log_of_the_classes():
    got = losses(jnp.zeros((2, 5), jnp.bfloat16), {"label": jnp.asarray([0, 4])})
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.log(5), rtol=1e-6)
