"""Scores: rows that were fitted are never scored, whatever file they come in."""

import json
from dataclasses import replace

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


def test_an_interval_is_what_nine_of_ten_fitted_rows_were_off_by(toy):
    made = [toy.row(n, n / 4 + 0.5 + 0.1 * (n % 2)) for n in range(1, 41)]
    found = fit(toy.form, made, toy.form.constants[:2])
    known = make_fitted_constants(toy.form, "cpu-fake", found, "all", "toy.csv")
    off = [abs(one.measured / one.predict(found.values) - 1) for one in made]
    share = known.interval["time"]
    assert sum(one <= share for one in off) == 36
    near, far = (
        toy.row(8.5, 2.6 * factor) for factor in (1 + share / 2, 1 + 3 * share)
    )
    scored = score_predictions([near, far], known)
    assert [one.is_covered for one in scored.rows] == [True, False]
    assert scored.total.covered == 0.5
    assert scored.rows[0].interval_half_width == pytest.approx(
        share * scored.rows[0].predicted
    )


def test_what_is_new_to_a_fit_has_a_wider_interval(toy):
    # Within a group rows are off by 1 %; one of the groups is 20 % slower, and the
    # largest rows 10 %.
    made = []
    for number in range(1, 61):
        slow = 1.2 if number % 3 == 0 else 1.0
        slow *= 1.1 if number > 30 else 1.0
        seconds = (number / 4 + 0.5) * slow * (1 + 0.01 * (-1) ** number)
        made.append(replace(toy.row(number, seconds), group="abc"[number % 3]))
    found = fit(toy.form, made, toy.form.constants[:2])
    known = make_fitted_constants(toy.form, "cpu-fake", found, "all", "toy.csv")
    assert known.groups == ("b", "c", "a")
    assert known.max_devices == 60
    seen, new = known.interval["time"], known.new_group_interval["time"]
    assert 0.15 < seen < new
    old = replace(toy.row(8.5, 2.6), group="a")
    other, large = replace(old, group="d"), replace(toy.row(61, 16), group="a")
    assert known.error_share(old) == seen
    assert known.error_share(other) == new
    assert known.error_share(large) == max(seen, known.larger_interval["time"])


def test_an_interval_is_not_known_where_nothing_as_new_was_held_out(toy):
    made = [replace(row, group="a") for row in toy.rows()]
    found = fit(toy.form, made, toy.form.constants[:2])
    known = make_fitted_constants(toy.form, "cpu-fake", found, "all", "toy.csv")
    # One group alone says nothing about the errors of another one.
    assert known.new_group_interval == {}
    assert known.error_share(made[0]) is not None
    assert known.error_share(replace(made[0], group="b")) is None


def test_files_of_earlier_fits_have_one_interval_for_all_rows(toy, known, tmp_path):
    path = tmp_path / "old.json"
    tree = json.loads((tmp_path / "fitted.json").read_text())
    later = ("new_group_interval", "larger_interval", "groups", "max_devices")
    path.write_text(json.dumps({k: v for k, v in tree.items() if k not in later}))
    old = read_constants(path, toy.form)
    far = replace(toy.row(64, 16.5), group="b")
    assert old.error_share(far) == old.interval["time"] == known.interval["time"]


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
