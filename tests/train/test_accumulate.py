"""Gradients of several microbatches, added up."""

import jax.numpy as jnp

from jaxdist.train.materialize_params import accumulate_gradients


def test_gradients_of_gathered_matrices_are_added_in_float32():
    """They are bfloat16 with fsdp: a sum of 512 ones would stop at 256."""

    def gradient(stats, batch):
        return jnp.float32(batch["x"].mean()), stats + 1, [jnp.ones(2, jnp.bfloat16)]

    step = accumulate_gradients(gradient, 512)
    loss, stats, grads = step(jnp.int32(0), {"x": jnp.ones(1024)})
    assert (float(loss), int(stats)) == (1.0, 512)
    assert grads[0].dtype == jnp.float32
    assert grads[0].tolist() == [1.0, 1.0]
