"""Intervals of held-out errors: how many of the next ones they hold."""

import math

import numpy as np
import pytest

from jaxdist.core.intervals import ErrorGroup, error_interval, quantile_bounds


@pytest.mark.parametrize("n", [3, 8, 9, 20, 38, 39, 200])
@pytest.mark.parametrize("draw", ["normal", "laplace"])
def test_nine_of_ten_next_errors_are_held_on_average(n, draw):
    """Few errors or many, of light tails or heavy ones."""
    rng = np.random.default_rng(n)
    held = []
    for _ in range(400):
        low, high = quantile_bounds(list(getattr(rng, draw)(0, 0.1, n)))
        after = getattr(rng, draw)(0, 0.1, 100)
        held.append(np.mean((low <= after) & (after <= high)))
    assert 0.87 <= np.mean(held) <= 0.96


def test_a_prediction_is_in_its_interval_though_all_errors_had_one_sign():
    low, high = quantile_bounds([0.4, 0.45, 0.5, 0.55, 0.6] * 5)
    assert low == 0
    assert high >= 0.6


def group(value, count=199, **kind):
    """Errors that lie evenly around zero; nine in ten are within `value`."""
    return ErrorGroup(log_ratios=tuple(value / 0.9 * np.linspace(-1, 1, count)), **kind)


def width(*args, **kwargs):
    return math.log(error_interval(*args, **kwargs).high)


def test_a_prediction_that_differs_in_several_ways_has_the_widest_interval():
    errors = [
        group(0.1),
        group(0.2, shift="network"),
        group(0.3, shift="scale", octaves=1),
        group(0.5, shift="nothing"),
    ]
    # No layout was held out: what is known is how far off the model is unfitted.
    want = {
        ("like",): 0.1,
        ("network",): 0.2,
        ("network", "scale"): 0.3,
        ("layout",): 0.5,
    }
    for shifts, most in want.items():
        assert width(errors, shifts, octaves=1) == pytest.approx(most, rel=0.02)
    assert error_interval(errors, ["like"], quantity="memory") is None


def test_beyond_the_devices_that_were_held_out_an_interval_grows_by_octave():
    errors = [
        group(0.1, shift="scale", octaves=1),
        group(0.2, shift="scale", octaves=2),
    ]
    found = [width(errors, ["scale"], octaves=octaves) for octaves in (1, 2, 4)]
    assert found == pytest.approx([0.1, 0.2, 0.4], rel=0.02)


def test_a_deciding_term_has_an_interval_of_its_own_where_it_was_held_out_often():
    errors = [group(0.1, term="compute"), group(0.4, term="sums", count=18)]
    own = error_interval(errors, ["like"], term="compute")
    assert math.log(own.high) == pytest.approx(0.1, rel=0.02)
    assert own.basis == "199 errors of steps like those fitted, compute deciding"
    alone = error_interval(errors, ["like"], term="sums")
    assert alone.basis == "217 errors of steps like those fitted"


def test_few_errors_of_a_kind_count_with_all_that_were_held_out():
    errors = [group(0.1, count=8), group(0.4, shift="network")]
    found = error_interval(errors, ["like"])
    assert math.log(found.high) > 0.35
    assert found.basis.startswith("207 errors of steps like those fitted and networks")
