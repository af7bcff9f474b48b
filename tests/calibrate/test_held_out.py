"""Errors of rows that are left out of a fit, by what is new in them."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.vtrain import VTrainFormat
from jaxdist.calibrate.held_out import device_octaves, fitted_scope
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import score_predictions
from jaxdist.meshes.clusters.load import load_cluster

ROWS = Path(__file__).parent / "data/vtrain/single_node_calibration.csv"


def test_what_is_new_in_a_row_is_told(toy):
    rows = [replace(row, columns={**row.columns, "model": "a"}) for row in toy.rows()]
    values = {"rate": 4.0, "wait": 0.5}
    scope = fitted_scope(rows, values)
    far, other = toy.row(100, 1.0, model="a"), toy.row(8, 1.0, model="b")
    assert scope.shifts(rows[0], values) == ["like"]
    assert scope.shifts(far, values) == ["scale"]
    assert scope.shifts(other, values) == ["nothing"]
    several = replace(scope, networks=("a 1", "a 2"))
    for model, shift in (("a 3", "network"), ("b 1", "nothing"), ("a 2", "like")):
        row = toy.row(8, 1.0, model=model)
        assert several.shifts(row, values) == [shift]
    new = replace(far, group="new")
    assert scope.shifts(new, values) == ["scale", "layout"]
    termed = replace(
        rows[0], predict_terms=lambda values: {"computing": 1.0, "sums": 1.0}
    )
    assert scope.shifts(termed, values) == ["layout"]


def test_networks_that_are_off_each_in_its_way_have_wide_intervals(toy):
    """Rows of a network agree to a percent, networks differ by up to a half."""
    rows = [
        toy.row(n, factor * n * (1 + 0.01 * (-1) ** n), model=name)
        for name, factor in zip("abcdefgh", (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5))
        for n in (1, 2, 3, 4)
    ]
    found = fit(toy.form, rows, toy.form.constants[:1])
    known = make_fitted_constants(toy.form, "cpu-fake", found, "all", "toy.csv")
    # What a network is off by is known of none that was not fitted.
    new = known.interval(toy.row(3, 1.0, model="z"))
    assert new.basis == "32 errors of networks that were not fitted"
    assert new.half_width > 0.3


@pytest.mark.parametrize(
    ("devices", "octaves"), [(4, 0), (8, 0), (9, 1), (16, 1), (128, 4), (2, 1), (1, 2)]
)
def test_devices_are_apart_by_doublings(devices, octaves):
    assert device_octaves(devices, (4, 8)) == octaves


def test_intervals_hold_nine_of_ten_rows_like_those_fitted():
    """vTrain's rows of one host; a fifth of them are fitted, the others are not."""
    form = VTrainFormat()
    rows = form.read(ROWS, load_cluster(form.cluster))
    chosen = parse_row_filter("row % 20 == 0").select(rows)
    found = fit(form, chosen, form.constants[:3])
    known = make_fitted_constants(form, form.cluster, found, "row % 20 == 0", ROWS.name)
    total = score_predictions(rows, known).total
    assert total.rows == 96
    assert total.covered >= 0.85
    assert total.half_width < 0.3
