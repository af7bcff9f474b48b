"""The largest numbers of a row, near in count, exact in place."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.collectives.compress.top_k_selection import (
    SAMPLE_SIZE,
    top_k,
    top_k_threshold,
)


@pytest.mark.parametrize("size", [2, 31, 32, 33, 1000, 5000])
@pytest.mark.parametrize("slots", [1, 7, 200])
def test_of_a_short_row_the_largest_are_found(size, slots):
    slots = min(slots, size)
    rows = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    values, where = map(np.asarray, top_k(jnp.asarray(rows), slots))
    for row, value, place in zip(rows, values, where, strict=True):
        wanted = np.sort(np.argsort(-np.abs(row))[:slots])
        assert (place == wanted).all()
        assert (value == row[wanted]).all()


def test_of_a_long_row_about_as_many_are_found():
    row = np.random.default_rng(0).standard_normal(8 * SAMPLE_SIZE).astype(np.float32)
    slots = row.size // 100
    values, where = map(np.asarray, top_k(jnp.asarray(row)[None], slots))
    real = where[0] < row.size
    assert 0.85 * slots < real.sum() <= slots
    assert (values[0][real] == row[where[0][real]]).all()
    assert (np.diff(where[0]) > 0).all()
    least = np.sort(np.abs(row))[-slots]
    assert np.abs(values[0][real]).min() > 0.95 * least


def test_equal_numbers_fill_the_slots_from_the_left():
    values, where = top_k(jnp.ones((1, 100)), 7)
    assert where[0].tolist() == list(range(7))
    assert (values == 1).all()


def test_zeros_and_numbers_that_are_not_finite_do_no_harm():
    row = jnp.zeros(100).at[3].set(jnp.inf).at[4].set(jnp.nan)
    values, _ = top_k(row[None], 5)
    assert values.shape == (1, 5)


def test_the_threshold_is_the_value_that_so_many_reach():
    row = jnp.asarray(np.random.default_rng(1).standard_normal(3000), jnp.float32)
    assert top_k_threshold(row, 30) == np.sort(np.abs(row))[-30]
