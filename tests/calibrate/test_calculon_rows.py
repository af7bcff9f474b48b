"""Megatron's published points: seconds and bytes, on sizes that were not fitted."""

from pathlib import Path

import pytest

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.calculon import CalculonFormat
from jaxdist.calibrate.measured_rows import initial_values
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import score_predictions
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster

DATA = Path(__file__).parent / "data" / "calculon"
FORM = CalculonFormat()
CLUSTER = load_cluster(FORM.cluster)


@pytest.fixture(scope="module")
def rows():
    return FORM.read(DATA / "measured.csv", CLUSTER)


@pytest.mark.parametrize("model", ["megatron-22B", "gpt3-175B"])
def test_the_other_model_is_predicted(rows, model):
    train = f"model == {model}"
    found = fit(FORM, parse_row_filter(train).select(rows), FORM.constants[:3])
    groups = score_predictions(
        rows, make_fitted_constants(FORM, FORM.cluster, found, train, "m.csv")
    ).groups
    assert groups["iteration_time"].mape <= 0.03
    assert groups["iteration_time"].worst <= 0.08
    for quantity in ("params_and_optimizer", "activations", "activations_relative"):
        assert groups[quantity].mape <= 0.005


def test_published_memory_is_met_without_constants(rows):
    values = initial_values(FORM.constants)
    kept = [row for row in rows if row.quantity == "activations"]
    assert len(kept) == 4
    for row in kept:
        assert row.predict(values) == pytest.approx(row.measured, rel=1e-3)


def test_a_file_that_is_not_there_is_refused_with_the_nearest(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "megatron-22B.json").write_text("{}")
    (tmp_path / "m.csv").write_text(
        "model,mode,quantity,unit,measured,execution,system\n"
        "megatron-2B,full,iteration_time,s,1.42,x.json,a100_80g\n"
    )
    with pytest.raises(BadInput, match="did you mean megatron-22B"):
        FORM.read(tmp_path / "m.csv", CLUSTER)


def test_another_quantity_is_refused(tmp_path):
    (tmp_path / "m.csv").write_text(
        "model,mode,quantity,unit,measured,execution,system\n"
        "megatron-22B,full,iteration_times,s,1.42,x.json,a100_80g\n"
    )
    with pytest.raises(BadInput, match="did you mean iteration_time in s"):
        FORM.read(tmp_path / "m.csv", CLUSTER)
