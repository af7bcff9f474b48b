"""A shift depends on (seed, epoch, sample id) and on nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.input.batch_assembly import draw_shifts, shift_images


def pictures(ids):
    """A picture without zeros for each id: [n, 6, 5, 2]."""
    start = 1 + 60 * np.asarray(ids, np.float32)[:, None]
    return (start + np.arange(60, dtype=np.float32)).reshape(-1, 6, 5, 2)


def shifted(ids, epochs, seed=0, shift=2):
    ids, epochs = np.asarray(ids, np.int32), np.asarray(epochs, np.int64)
    return shift_images(pictures(ids), ids, epochs, seed=seed, max_shift=shift)


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(0, 3))
def test_the_batch_around_a_sample_does_not_matter(ids, count, epoch):
    everything = shifted(range(12), [epoch] * 12)
    some = ids[:count]
    np.testing.assert_array_equal(shifted(some, [epoch] * count), everything[some])


@given(st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 50))
def test_pixels_move_together_and_zeros_follow(shift, sample, epoch):
    ids, epochs = np.array([sample], np.int32), np.array([epoch])
    (down,), (right,) = draw_shifts(ids, epochs, seed=0, max_shift=shift)
    expected = np.zeros((1, 6, 5, 2), np.float32)
    for row in range(6):
        for column in range(5):
            if 0 <= row - down < 6 and 0 <= column - right < 5:
                expected[0, row, column] = pictures(ids)[0, row - down, column - right]
    np.testing.assert_array_equal(shifted(ids, epochs, shift=shift), expected)


def test_every_offset_is_drawn_about_as_often():
    ids = np.arange(9000, dtype=np.int32)
    down, right = draw_shifts(ids, np.zeros(9000, np.int64), seed=3, max_shift=1)
    counts = np.bincount(3 * (down + 1) + right + 1, minlength=9)
    assert counts.shape == (9,)
    assert ((counts - 1000) ** 2 / 1000).sum() < 40  # chi-squared, 8 degrees: p < 4e-6


def test_epoch_and_seed_change_the_shift():
    ids = np.arange(64)
    first = shifted(ids, [0] * 64)
    assert (first != shifted(ids, [1] * 64)).any()
    assert (first != shifted(ids, [0] * 64, seed=1)).any()


def test_no_shift_gives_the_images_and_a_shift_leaves_them_alone():
    images, ids = pictures(range(3)), np.arange(3, dtype=np.int32)
    kept, epochs = images.copy(), np.zeros(3, np.int64)
    assert shift_images(images, ids, epochs, seed=0, max_shift=0) is images
    moved = shift_images(images, ids, epochs, seed=0, max_shift=2)
    assert moved.dtype == np.float32
    assert moved.flags.c_contiguous
    np.testing.assert_array_equal(images, kept)
