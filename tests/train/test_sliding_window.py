"""Sliding windows: where they lie, and what they say together."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.train.sliding_window import BlendedPlanes, SlidingWindow

BLENDS = ("gaussian", "constant", "center")


@given(
    st.integers(1, 200),
    st.integers(1, 80),
    st.floats(0, 0.95),
)
def test_windows_cover_all_rows_and_overlap_as_asked(rows, side, overlap):
    starts = SlidingWindow(sides=(side,), overlap=overlap).starts(rows, 0)
    assert starts[0] == 0
    assert starts[-1] == max(rows - side, 0)
    steps = np.diff(starts)
    assert (steps > 0).all()
    assert (steps <= max(int(side * (1 - overlap)), 1)).all()


def test_windows_begin_where_networks_halve():
    for rows, side, overlap in ((96, 32, 0.5), (160, 96, 0.5), (48, 24, 0.3)):
        starts = SlidingWindow(sides=(side,), overlap=overlap).starts(rows, 0)
        assert all(start % 8 == 0 for start in starts)


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize(
    ("image", "sides", "overlap"),
    [((12,), (5,), 0.5), ((9, 7), (4, 8), 0.25), ((6, 8, 5), (4, 4, 2), 0.6)],
)
def test_blended_outputs_are_those_of_the_formula(image, sides, overlap, blend):
    window = SlidingWindow(sides=sides, overlap=overlap, blend=blend)
    draw = np.random.default_rng(0)
    padded = tuple(map(max, image, sides))
    above, below = np.zeros((*padded, 3)), np.zeros((*padded, 1))
    planes, found = BlendedPlanes(window, image), []
    places = window.places(image)
    for number, place in enumerate(places):
        said = draw.normal(size=(*sides, 3))
        planes.add(place, said)
        weight = np.zeros((*sides, 1))
        for pixel in product(*map(range, sides)):
            far = [(x - (n - 1) / 2) / (n / 8) for x, n in zip(pixel, sides)]
            weight[pixel] = np.exp(-0.5 * np.square(far).sum())
            if blend == "constant":
                weight[pixel] = 1
            if blend == "center":
                weight[pixel] = all(
                    place[dim]
                    == min(
                        window.starts(image[dim], dim),
                        key=lambda s: abs(place[dim] + pixel[dim] - s - (n - 1) / 2),
                    )
                    for dim, n in enumerate(sides)
                )
        part = tuple(slice(p, p + n) for p, n in zip(place, sides))
        above[part] += weight * said
        below[part] += weight
        after = places[number + 1][0] if number + 1 < len(places) else image[0]
        found += planes.take(after)
    real = tuple(map(slice, image))
    np.testing.assert_allclose(np.stack(found), (above / below)[real], atol=1e-12)


def test_planes_are_kept_only_while_a_window_sees_them():
    most = []
    for rows in (64, 256):
        window = SlidingWindow(sides=(16, 8), overlap=0.5)
        planes = BlendedPlanes(window, (rows, 8))
        places = window.places((rows, 8))
        for place, after in zip(places, [*places[1:], (rows, 0)]):
            planes.add(place, np.ones((16, 8, 2), np.float32))
            list(planes.take(after[0]))
        most.append(planes.max_bytes)
    assert most == [16 * 8 * 2 * 4] * 2


@pytest.mark.parametrize("how", [{"overlap": 1.0}, {"overlap": -0.1}, {"sides": (0,)}])
def test_windows_that_cannot_be_are_refused(how):
    with pytest.raises(BadInput, match="windows cannot lie so"):
        SlidingWindow(**{"sides": (8,), **how})


def test_outputs_of_16_bits_are_blended_in_float32():
    """Weights of windows are 1 together, so the same everywhere stays the same."""
    window = SlidingWindow(sides=(32,), overlap=0.75)
    planes = BlendedPlanes(window, (128,))
    for place in window.places((128,)):
        planes.add(place, np.full((32, 1), 3, ml_dtypes.bfloat16))
    found = np.stack(list(planes.take(128)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 3, rtol=1e-6)
