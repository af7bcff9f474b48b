"""Sizes of the collectives that are timed."""

import pytest

from jaxdist.calibrate.collective_timings import MESSAGE_SIZES, sizes_up_to

GRID = sorted(MESSAGE_SIZES)
MB = 1_000_000


@pytest.mark.parametrize(
    ("largest", "kept", "more"),
    [
        (None, GRID, []),
        (64 * MB, GRID, [1 << 25, 64 * MB]),
        (1 << 25, GRID, [1 << 25]),
        (1 << 31, GRID, [1 << 25, 1 << 27, 1 << 29, 1 << 31]),
        (MB, GRID[:5], [MB]),
        (8 * MB, GRID[:6], [8 * MB]),
        # So close to a size of the grid that one of both is enough.
        (1 + (1 << 23), GRID[:6], [1 + (1 << 23)]),
        (35 * MB, GRID, [35 * MB]),
    ],
)
def test_sizes_go_on_by_factors_of_four(largest, kept, more):
    assert list(sizes_up_to(MESSAGE_SIZES, largest)) == [*kept, *more]


def test_sizes_beyond_the_grid_are_timed_as_its_last():
    found = sizes_up_to(MESSAGE_SIZES, 64 * MB)
    assert found[1 << 25] == found[64 * MB] == MESSAGE_SIZES[1 << 23]
    assert sizes_up_to(MESSAGE_SIZES, MB)[MB] == MESSAGE_SIZES[1 << 21]
