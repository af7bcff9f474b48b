"""Keyed hashes and permutations are fixed functions, whatever the arguments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.input.keyed_permutation import (
    bounded_int,
    hash64,
    inverse_permute,
    permute,
)


@given(seed=st.integers(-(2**63), 2**64 - 1), n=st.integers(1, 600))
def test_every_key_permutes_the_whole_range(seed, n):
    assert sorted(permute(hash64(seed), range(n), n).tolist()) == list(range(n))


@given(seed=st.integers(0, 2**63), n=st.integers(1, 600))
def test_a_permutation_is_undone(seed, n):
    keys = hash64(seed, np.arange(n))
    assert inverse_permute(keys, permute(keys, range(n), n), n).tolist() == list(
        range(n)
    )


def test_long_ranges_are_permuted_as_short_ones():
    n = 100_000  # several stretches
    found = permute(hash64(1), range(n), n)
    assert np.array_equal(np.sort(found), np.arange(n))
    assert found[70_000] == permute(hash64(1), [70_000], n)[0]
    assert np.array_equal(inverse_permute(hash64(1), found, n), np.arange(n))


@given(n=st.integers(10**6, 2**31 - 1), epoch=st.integers(0, 100))
def test_a_large_range_needs_no_table(n, epoch):
    places = np.linspace(0, n - 1, 500).astype(np.int64)
    found = permute(hash64(3, epoch), places, n)
    assert len(set(found.tolist())) == 500
    assert found.min() >= 0
    assert found.max() < n


def test_a_position_does_not_depend_on_its_neighbours():
    keys = hash64(5, np.array([0, 0, 1, 1]))
    together = permute(keys, [0, 1, 2, 3], 1437)
    alone = [permute(keys[i : i + 1], [i], 1437)[0] for i in range(4)]
    assert together.tolist() == alone


def test_the_numbers_never_change():
    # A change here changes the order of every run there is, and breaks its resume.
    assert permute(hash64(0, 0), range(10), 10).tolist() == [
        0,
        1,
        7,
        5,
        9,
        2,
        6,
        4,
        3,
        8,
    ]
    assert permute(hash64(1, 7), [0, 1, 1436], 1437).tolist() == [496, 916, 183]
    assert int(hash64(-1, 2**63)[0]) == 122324666419285289


def test_first_places_are_spread_evenly():
    drawn = permute(hash64(0, np.arange(37_000)), np.zeros(37_000, int), 37)
    counts = np.bincount(drawn, minlength=37)
    assert ((counts - 1000) ** 2 / 1000).sum() < 80  # chi-squared, 36 degrees: p < 4e-5


@pytest.mark.parametrize("bound", [1, 3, 1000])
def test_below_reaches_every_value_and_no_other(bound):
    drawn = bounded_int(bound, hash64(1, np.arange(20 * bound)))
    assert set(drawn.tolist()) == set(range(bound))
