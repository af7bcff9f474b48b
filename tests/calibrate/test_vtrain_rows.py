"""Rows of vTrain: predictions by physics, held out by size and by chance."""

from pathlib import Path

import pytest

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.vtrain import VTrainFormat
from jaxdist.calibrate.measured_rows import initial_values
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import score_predictions
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster

DATA = Path(__file__).parent / "data" / "vtrain"
FORM = VTrainFormat()
CLUSTER = load_cluster(FORM.cluster)
ONE, SEVERAL = "single_node_calibration.csv", "multi_node_calibration.csv"


def rows(name):
    return FORM.read(DATA / name, CLUSTER)


@pytest.mark.parametrize(
    ("file", "train", "most"),
    [
        (ONE, "row % 24 == 0", 0.08),
        (ONE, "devices <= 4", 0.09),
        (ONE, "hidden == 1024", 0.10),
        (SEVERAL, "row % 2 == 0", 0.12),
        (SEVERAL, "row % 2 == 1", 0.12),
        (SEVERAL, "devices <= 256", 0.12),
        (SEVERAL, "hidden <= 8192", 0.08),
    ],
)
def test_rows_that_were_not_fitted_are_predicted(file, train, most):
    every = rows(file)
    found = fit(FORM, parse_row_filter(train).select(every), FORM.constants[:3])
    total = score_predictions(
        every, make_fitted_constants(FORM, FORM.cluster, found, train, file)
    ).total
    assert total.mape <= most
    assert total.mape < 0.7 * total.baseline_mape


@pytest.mark.parametrize(
    ("file", "row", "terms"),
    [
        (SEVERAL, 0, {"forward", "recompute", "all-reduce, data"}),
        (SEVERAL, 36, {"bubble", "send, pipe", "all-reduce, tensor"}),
        (ONE, 8, {"forward", "backward", "wait for the host"}),
    ],
)
def test_the_terms_of_a_row_add_up_to_its_prediction(file, row, terms):
    one = rows(file)[row]
    values = initial_values(FORM.constants)
    found = one.predict_terms(values)
    assert sum(found.values()) == pytest.approx(one.predict(values))
    assert min(found.values()) >= 0
    assert all(found[name] > 0 for name in terms)


def test_predictions_of_given_constants_stay_as_they_were():
    values = initial_values(FORM.constants) | {
        "matmul": 0.8,
        "memory": 0.6,
        "issue": 9e-5,
    }
    several, one = rows(SEVERAL), rows(ONE)
    found = [r.predict(values) for r in (several[0], several[14], several[30], one[0])]
    assert found == pytest.approx([3.705237, 13.410965, 56.013174, 0.3578447], rel=1e-6)


def test_a_row_is_known_again_beside_more_columns(tmp_path):
    head, *lines = (DATA / ONE).read_text().splitlines()
    more = "\n".join([f"{head},note", *(f"{line},mine" for line in lines)])
    (tmp_path / "more.csv").write_text("\ufeff" + more, encoding="utf-8")
    again = FORM.read(tmp_path / "more.csv", CLUSTER)
    assert [row.key for row in again] == [row.key for row in rows(ONE)]
    assert len({row.key for row in again}) == len(again) == 120


def test_a_row_that_cannot_be_is_refused_by_its_number(tmp_path):
    text = (DATA / ONE).read_text().splitlines()
    for name, line, said in (
        ("devices", text[1].replace(",2,16,8,", ",4,16,8,", 1), "4 devices are not 2"),
        ("number", text[1] + "x", "iteration time .ms. is .*x"),
        ("batch", text[1].replace(",16,8,", ",17,8,", 1), "no whole microbatches"),
        ("layers", text[1].replace(",24,", ",23,", 1), "23 layers"),
    ):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([text[0], line]))
        with pytest.raises(BadInput, match=said):
            FORM.read(path, CLUSTER)
