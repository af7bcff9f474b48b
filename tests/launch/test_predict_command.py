"""`jaxdist oracle predict` and `jaxdist calibrate`: what they print and refuse."""

import json

import pytest

from jaxdist.launch.cli import main


def refused(capsys, *words):
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_a_prediction_is_one_object(capsys):
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "--cluster", "testbed")
    assert main(["oracle", "predict", "digits", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"] == pytest.approx(sum(found["terms_s"].values()))
    assert found["memory_bytes"] == sum(found["memory_by_term"].values())
    assert found["interval_s"][0] < found["step_s"] < found["interval_s"][1]
    assert set(found["origins"]) > {"device.memory", "levels.net.alpha"}


def test_what_cannot_be_predicted_is_refused(capsys, tmp_path):
    said = refused(capsys, "oracle", "predict", "digits")
    assert "a prediction is for a cluster" in said
    said = refused(capsys, "oracle", "predict", "digits", "--cluster", "testbad")
    assert "did you mean testbed" in said
    said = refused(capsys, "oracle", "predict", "digits", "--cluster", "testbed")
    assert "needs more devices" in said
    said = refused(
        capsys, "oracle", "predict", "digits", "--cluster", "abci", "--rows", "x<1"
    )
    assert "takes no rows" in said


def test_words_that_calibrate_does_not_know_are_refused(capsys):
    assert "has no fitt" in refused(capsys, "calibrate", "fitt", "rows.csv")
    assert "which rows to fit" in refused(capsys, "calibrate", "fit", "rows.csv")


def test_a_cluster_is_not_measured_for_a_folder_that_is_not_there(capsys, tmp_path):
    said = refused(capsys, "calibrate", "-o", str(tmp_path / "none" / "mine.json"))
    assert "none" in said
