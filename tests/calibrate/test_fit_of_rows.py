"""Fits of few bounded constants: what they find, and what they refuse."""

from dataclasses import replace

import pytest

from jaxdist.calibrate.fit import fit, median_utilisation, select_constants
from jaxdist.core.errors import BadInput


def test_constants_of_exact_rows_are_found(toy):
    found = fit(toy.form, toy.rows(rate=4.0, wait=0.5), toy.free)
    assert found.values["rate"] == pytest.approx(4.0, rel=0.05)
    assert found.values["wait"] == pytest.approx(0.5, rel=0.1)
    assert found.mape < 0.02


def test_what_rows_do_not_tell_stays_where_it_started(toy):
    wait = replace(toy.free[1], low=0.0, high=1e-6, initial=4e-7)
    form = toy.Format(constants=(toy.free[0], wait))
    found = fit(form, toy.rows(wait=0.0), form.constants)
    assert found.values["rate"] == pytest.approx(4.0, rel=0.05)
    assert found.values["wait"] == pytest.approx(wait.initial, rel=0.05)


def test_constants_stay_within_their_bounds_and_others_at_their_start(toy):
    found = fit(toy.form, toy.rows(rate=1e4, wait=0.0), toy.free[:1])
    assert toy.free[0].low <= found.values["rate"] <= toy.free[0].high
    assert found.values["wait"] == toy.free[1].initial


def test_one_outlier_does_not_lead(toy):
    spoilt = [*toy.rows(works=range(1, 20)), toy.row(20, 60.0)]
    assert fit(toy.form, spoilt, toy.free).values["rate"] == pytest.approx(
        4.0, rel=0.05
    )


def test_the_baseline_is_the_median_utilisation(toy):
    made = [toy.row(1, 2.0), toy.row(1, 4.0), toy.row(1, 100.0)]
    assert median_utilisation(made) == {"time": 0.25}


def test_the_first_three_constants_are_fitted_unless_others_are_named(toy):
    assert [one.name for one in select_constants(toy.form, None, 3)] == [
        "rate",
        "wait",
        "a",
    ]
    assert [one.name for one in select_constants(toy.form, ["b", "b"], 3)] == ["b"]
    with pytest.raises(BadInput, match="--allow-many-constants"):
        select_constants(toy.form, ["rate", "wait", "a", "b"], 3)
    assert len(select_constants(toy.form, ["rate", "wait", "a", "b"], 4)) == 4
    with pytest.raises(BadInput, match="did you mean rate"):
        select_constants(toy.form, ["rates"], 3)


def test_fewer_rows_than_constants_are_refused(toy):
    with pytest.raises(BadInput, match="2 rows do not fit 2 constants"):
        fit(toy.form, toy.rows()[:2], toy.free)


def test_noisy_rows_are_left_out_and_refused_where_they_are_most(toy):
    quiet = toy.rows()
    loud = [replace(one, spread=0.3) for one in quiet]
    found = fit(toy.form, [*quiet, *loud[:3]], toy.free)
    assert (len(found.rows), len(found.noisy_rows)) == (6, 3)
    with pytest.raises(BadInput, match="30% above it"):
        fit(toy.form, [*quiet[:2], *loud], toy.free)
    assert len(fit(toy.form, [*quiet[:2], *loud], toy.free, allow_noisy=True).rows) == 8
