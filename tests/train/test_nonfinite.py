"""What is not finite is found in leaves of every size, and in no other."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.train.nonfinite import nan_unless_finite

SIZES = (1, 3, 2**15, 2**15 + 1, 2**17)


def leaves():
    return [np.ones(size, np.float32) for size in SIZES] + [np.ones(2, np.complex64)]


@pytest.mark.parametrize("leaf", range(len(SIZES) + 1))
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_one_number_of_one_leaf_is_found(leaf, bad):
    tree = leaves()
    tree[leaf][-1] = bad
    assert jnp.isnan(nan_unless_finite(jnp.float32(2), tree))


def test_what_is_finite_changes_no_loss():
    counters = np.full(4, 2**31 - 1, np.int32)
    assert nan_unless_finite(jnp.float32(2), [*leaves(), counters]) == 2
    assert nan_unless_finite(jnp.float32(2), [counters]) == 2
