"""Crops lie inside their image and depend on (seed, epoch, sample) alone."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.input.crops import center_crop, random_resized_crop

SIDES = st.integers(1, 3000)
DRAWS = [random_resized_crop(500, 400, seed=0, epoch=2, sample=i) for i in range(2000)]


def inside(crop, width, height):
    left, top, right, bottom = crop.box
    slack = 1e-6 * max(width, height)
    assert crop.width > 0 < crop.height
    assert left >= -slack <= top
    assert right <= width + slack
    assert bottom <= height + slack


@given(SIDES, SIDES, st.integers(0, 9), st.integers(0, 2**31 - 1))
def test_every_crop_is_inside_its_image(width, height, epoch, sample):
    inside(
        random_resized_crop(width, height, seed=1, epoch=epoch, sample=sample),
        width,
        height,
    )
    inside(center_crop(width, height), width, height)


def test_area_and_shape_are_those_of_the_paper():
    areas = np.array([c.width * c.height / 200_000 for c in DRAWS])
    ratios = np.array([c.width / c.height for c in DRAWS])
    assert 0.08 <= areas.min() < 0.1
    assert 0.85 < areas.max() <= 1
    assert 3 / 4 - 1e-9 <= ratios.min() < 0.8
    assert 1.25 < ratios.max() <= 4 / 3 + 1e-9


def test_half_of_the_images_are_flipped():
    share = sum(c.flip for c in DRAWS) / len(DRAWS)
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / len(DRAWS))


def test_seed_epoch_and_sample_change_the_crop():
    first = random_resized_crop(500, 400, seed=0, epoch=0, sample=0)
    for other in ({"seed": 1}, {"epoch": 1}, {"sample": 1}):
        drawn = {"seed": 0, "epoch": 0, "sample": 0} | other
        assert random_resized_crop(500, 400, **drawn) != first


def test_a_long_thin_image_shows_its_middle():
    crop = random_resized_crop(3000, 10, seed=0, epoch=0, sample=0)
    assert crop.box == (1495, 0, 1505, 10)
