"""Logits in slices say what whole logits say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.train.logits import UnsplitLogits, VocabParallelLogits

LABELS = jnp.asarray([[0, 3, 4], [7, 5, 1]], jnp.int32)


def sliced(method, logits, *labels):
    """Call a method of `VocabParallelLogits` on slices of whole logits over four devices."""
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("tensor",))
    split = P(*(None,) * (logits.ndim - 1), "tensor")
    return jax.shard_map(
        method,
        mesh=mesh,
        in_specs=(split, *(P() for _ in labels)),
        out_specs=P(),
        check_vma=False,
    )(logits, *labels)


@pytest.fixture
def logits():
    with jax.enable_x64():
        yield 5 * jax.random.normal(jax.random.key(0), (2, 3, 8), jnp.float64)


def test_surprise_is_that_of_whole_logits(logits):
    found = sliced(VocabParallelLogits().cross_entropy, logits, LABELS)
    np.testing.assert_allclose(
        found, UnsplitLogits().cross_entropy(logits, LABELS), rtol=1e-14
    )


def test_large_logits_do_not_overflow(logits):
    logits = logits + 1e4
    found = sliced(VocabParallelLogits().cross_entropy, logits, LABELS)
    np.testing.assert_allclose(
        found, UnsplitLogits().cross_entropy(logits, LABELS), rtol=1e-9
    )


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_not_finite_surfaces(bad, logits):
    found = sliced(
        VocabParallelLogits().cross_entropy, logits.at[0, 1, 6].set(bad), LABELS
    )
    assert not np.isfinite(found[0, 1])
    assert np.isfinite(found[1]).all()


def test_the_likeliest_is_the_first_of_the_largest(logits):
    logits = logits.at[0, 0, jnp.asarray([2, 6])].set(90.0)
    found = sliced(VocabParallelLogits().argmax, logits)
    assert int(found[0, 0]) == 2
    np.testing.assert_array_equal(found, UnsplitLogits().argmax(logits))
