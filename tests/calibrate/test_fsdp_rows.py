"""Rows of FSDP: predictions of hosts, networks and contexts that were not fitted."""

import csv
from pathlib import Path

import pytest

from jaxdist.calibrate.fit import MAX_CONSTANTS, fit, select_constants
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.fsdp import FsdpFormat
from jaxdist.calibrate.measured_rows import initial_values
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import score_predictions
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster

MEASURED = Path(__file__).parent / "data" / "fsdp" / "measured.csv"
FORM = FsdpFormat()
CLUSTER = load_cluster(FORM.cluster)
FREE = select_constants(FORM, None, MAX_CONSTANTS)


@pytest.fixture(scope="module")
def rows():
    return FORM.read(MEASURED, CLUSTER)


@pytest.fixture
def changed(tmp_path):
    """Write the first row with other cells, and read it."""

    def read(missing="", **cells):
        with MEASURED.open() as file:
            row = next(csv.DictReader(file)) | cells
        row.pop(missing, None)
        path = tmp_path / "changed.csv"
        path.write_text("\n".join(map(",".join, (row, row.values()))))
        return FORM.read(path, CLUSTER)[0]

    return read


def test_three_constants_of_each_card_are_fitted():
    assert [one.name for one in FREE] == [
        *("matmul_h100", "attention_h100"),
        *("matmul_a100", "attention_a100", "interference"),
    ]
    named = ["matmul_a100", "attention_a100", "interference", "memory"]
    with pytest.raises(BadInput, match="4 constants are many"):
        select_constants(FORM, named, MAX_CONSTANTS)
    assert len(select_constants(FORM, ["matmul_h100", *named[:3]], MAX_CONSTANTS)) == 4


@pytest.mark.parametrize(
    ("train", "most"),
    [
        ("gpus == 8", 0.02),
        ("model != 30b", 0.07),
        ("context <= 8192", 0.05),
        ("row % 4 == 0", 0.04),
    ],
)
def test_rows_that_were_not_fitted_are_predicted(rows, train, most):
    found = fit(FORM, parse_row_filter(train).select(rows), FREE)
    known = make_fitted_constants(FORM, FORM.cluster, found, train, MEASURED.name)
    total = score_predictions(rows, known).total
    assert total.mape <= most
    assert total.mape < 0.7 * total.baseline_mape


def test_the_measured_step_is_that_of_the_samples_a_second(rows):
    with MEASURED.open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(rows) == 54
    # Samples a second are rounded down.
    for line, row in zip(lines, rows, strict=True):
        assert int(float(line["batch"]) / row.measured) == float(line["samples_per_s"])


def test_the_terms_of_a_row_add_up_to_its_prediction(rows):
    values = initial_values(FORM.constants)
    for row in rows:
        found = row.predict_terms(values)
        assert sum(found.values()) == pytest.approx(row.predict(values))
        assert min(found.values()) >= 0


def test_cards_of_one_chip_share_constants_and_baseline(changed):
    values = initial_values(FORM.constants)
    big, small = (changed(device=name) for name in ("a100_80", "a100_40"))
    assert big.quantity == small.quantity != changed().quantity
    assert big.group != small.group
    assert changed(device="A100-40", model="30B").group == small.group
    assert 1.0 < small.predict(values) / big.predict(values) < 1.1


def test_a_cluster_takes_the_place_of_its_card(rows):
    values = initial_values(FORM.constants)
    path = MEASURED
    slow = CLUSTER.with_number(
        "levels.host.bandwidth",
        type(CLUSTER.levels[0].bandwidth)(1e11, "given: a test"),
    )
    for before, after in zip(rows, FORM.read(path, slow), strict=True):
        longer = after.predict(values) > before.predict(values)
        assert longer == before.quantity.endswith("h100")


def test_rows_of_more_hosts_and_other_shardings_are_read(changed):
    values = initial_values(FORM.constants)
    many = changed(gpus="512", batch="512", accumulate="1", model="70b")
    assert many.group == "h100, 4 hosts or more"
    kept = changed(
        gpus="512", batch="512", accumulate="1", model="70b", sharding="SHARD_GRAD_OP"
    )
    pure = changed(precision="bf16", mode="PURE")
    assert kept.predict(values) < many.predict(values)
    assert pure.predict(values) < changed().predict(values)


@pytest.mark.parametrize(
    ("cells", "parts"),
    [
        ({"missing": "mfu"}, ("no column mfu", "samples_per_s")),
        ({"device": "h10"}, ("device is h10", "a100_40", "did you mean h100")),
        ({"model": "8B"}, ("model is 8b", "3b, 7b, 13b", "leave out")),
        ({"mfu": "0.0"}, ("mfu is 0.0", "above 0", "leave out")),
        ({"mode": "FULL"}, ("mode is FULL", "DEFAULT, PURE")),
        ({"precision": "fp8"}, ("precision is fp8", "amp_bf16, bf16")),
        ({"sharding": "NO_SHARD"}, ("NO_SHARD", "FULL_SHARD, SHARD_GRAD_OP")),
        ({"remat": "2"}, ("remat is 2", "0, 1")),
        ({"gpus": "0"}, ("gpus is 0", "above 0")),
        ({"accumulate": "3"}, ("not 3 passes", "8 x 1 samples", "accumulate 21")),
    ],
)
def test_wrong_rows_are_refused_with_rule_and_remedy(changed, cells, parts):
    with pytest.raises(BadInput) as caught:
        changed(**cells)
    for part in parts:
        assert part in str(caught.value)
