"""Scores: rows that were fitted are never scored, whatever file they come in."""

import json

import pytest

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import (
    initial_constants,
    make_fitted_constants,
    read_constants,
    write_constants,
)
from jaxdist.calibrate.score import score_predictions
from jaxdist.core.errors import BadInput


@pytest.fixture
def known(toy, tmp_path):
    found = fit(toy.form, toy.rows()[:4], toy.form.constants[:2])
    made = make_fitted_constants(toy.form, "cpu-fake", found, "devices<=8", "toy.csv")
    write_constants(made, tmp_path / "fitted.json")
    read = read_constants(tmp_path / "fitted.json", toy.form)
    assert read == made
    return read


def test_fitted_rows_are_left_out_and_the_others_scored(toy, known):
    found = score_predictions(toy.rows(), known)
    assert [one.row.devices for one in found.rows] == [16, 32]
    assert found.num_fitted == 4
    total = found.total
    assert total.mean_accuracy == pytest.approx(1 - total.mape)
    assert total.mape < 0.02 < total.baseline_mape
    assert not found.baseline_in_hindsight


def test_an_interval_holds_nine_of_ten_rows_that_were_left_out(toy):
    made = [toy.row(n, n / 4 + 0.5 + 0.1 * (n % 2)) for n in range(1, 41)]
    found = fit(toy.form, made, toy.form.constants[:2])
    known = make_fitted_constants(toy.form, "cpu-fake", found, "all", "toy.csv")
    middle = toy.row(8.5, 1.0)
    interval = known.interval(middle)
    assert interval.basis == "40 errors of steps like those fitted"
    predicted = middle.predict(known.values)
    near, far = (
        toy.row(8.5, predicted * factor)
        for factor in ((1 + interval.high) / 2, 3 * interval.high)
    )
    scored = score_predictions([near, far], known)
    assert [one.is_covered for one in scored.rows] == [True, False]
    assert scored.total.covered == 0.5
    assert scored.total.half_width == pytest.approx(interval.half_width)


def test_files_of_constants_from_before_have_no_interval(toy, known, tmp_path):
    tree = json.loads((tmp_path / "fitted.json").read_text())
    del tree["errors"], tree["scope"]
    tree["interval"] = {"time": 0.1}
    (tmp_path / "old.json").write_text(json.dumps(tree))
    old = read_constants(tmp_path / "old.json", toy.form)
    assert old.values == known.values
    assert score_predictions(toy.rows()[4:], old).total.covered is None


def test_rows_that_were_all_fitted_are_refused_with_their_count(toy, known):
    with pytest.raises(BadInput, match="4 of 4 rows are those that were fitted"):
        score_predictions(toy.rows()[:4], known)


def test_a_fitted_row_that_is_asked_for_is_refused(toy, known):
    with pytest.raises(BadInput, match="1 of 3 rows"):
        score_predictions(toy.rows()[3:], known, explicit=True)


def test_a_row_is_known_again_in_another_order_and_another_way_of_writing(toy, known):
    first = toy.rows()[0]
    again = toy.row(1, first.measured, **{"kind": "a", "row": "17"})
    assert again.key == first.key
    assert toy.row(1.0, first.measured, kind="a").key == first.key
    assert toy.row(1, first.measured, kind="b").key != first.key
    assert again.key in known.rows


def test_a_baseline_without_training_rows_is_fitted_in_its_favour(toy):
    found = score_predictions(toy.rows(), initial_constants(toy.form, "cpu-fake"))
    assert found.baseline_in_hindsight
    assert found.total.covered is None
    assert found.num_fitted == 0


def test_constants_of_another_format_are_refused(toy, known, tmp_path):
    with pytest.raises(BadInput, match="fitted to rows of the form toy"):
        read_constants(tmp_path / "fitted.json", toy.Format(name="other"))
    (tmp_path / "bad.json").write_text('{"format": "toy"}')
    with pytest.raises(BadInput, match="no fitted constants"):
        read_constants(tmp_path / "bad.json", toy.form)
