"""`jaxdist calibrate fit` and `jaxdist score`: what they print and refuse."""

import json
from pathlib import Path

import pytest

from jaxdist.launch.cli.main import main

DATA = Path(__file__).parents[2] / "calibrate" / "data"
ONE = str(DATA / "vtrain" / "single_node_calibration.csv")
MEGATRON = str(DATA / "calculon" / "measured.csv")


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def fitted(job, tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "fitted.json"
    words = ("calibrate", "fit", ONE, "--train", "row % 24 == 0", "-o", path)
    code, out, err = job.call(*words)
    assert (code, err) == (0, "")
    assert "fitted where row % 24 == 0" in out
    assert "matmul" in out
    return path


def test_a_fit_and_a_score_of_one_file(answer, fitted):
    code, out, _ = answer("score", ONE, "--cluster", fitted, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["rows"] == len(found["each"]) == 60
    assert found["left_out"] == 60
    assert found["mean_accuracy"] == pytest.approx(1 - found["mape"])
    assert found["mape"] < 0.08
    assert found["baseline_mape"] > 0.3
    one = found["each"][0]
    assert one["error"] == pytest.approx(abs(one["predicted"] / one["measured"] - 1))


def test_a_table_for_people_has_the_baseline_and_the_terms(answer, fitted):
    words = ("score", ONE, "--cluster", fitted, "--explain", 3)
    code, out, _ = answer(*words)
    assert code == 0
    for word in ("baseline's MAPE", "worst rows", "all-reduce, data", "bubble"):
        assert word in out


def test_rows_of_a_fit_are_not_scored_in_another_file_either(answer, fitted, tmp_path):
    lines = Path(ONE).read_text().splitlines()
    trained = [n for n in lines[1:] if int(n.split(",")[0]) % 24 == 0]
    (tmp_path / "again.csv").write_text("\n".join([lines[0], *reversed(trained)]))
    again = tmp_path / "again.csv"
    code, out, err = answer("score", again, "--cluster", fitted)
    assert (code, out) == (2, "")
    assert "60 of 60 rows are those that were fitted" in err
    words = ("--cluster", fitted, "--rows", "devices <= 8")
    code, _, err = answer("score", ONE, *words)
    assert code == 2
    assert "60 of 120 rows" in err


def test_a_cluster_will_do_where_nothing_is_fitted(answer):
    words = ("--rows", "quantity == iteration_time", "--json")
    code, out, _ = answer("score", MEGATRON, *words)
    found = json.loads(out)
    assert (code, found["rows"], found["baseline_hindsight"]) == (0, 4, True)
    assert found["mape"] < 0.03


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--train", "device <= 4"), "did you mean devices"),
        (("--train", "devices <= 1"), "selects none"),
        (("--train", "devices <= 4", "--format", "vtrian"), "did you mean vtrain"),
        (("--train", "devices <= 4", "--format", "calculon"), "no column"),
        (("--train", "devices <= 4", "--constants", "issu"), "did you mean issue"),
        (
            ("--train", "devices <= 4", "--constants", "issue,matmul,memory,inside"),
            "at most 3",
        ),
        (("--train", "devices <= 4", "--cluster", "dgx-a10"), "did you mean dgx-a100"),
        (("--train", "devices <= 4", "-o", "no/such/f.json"), "no folder"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(answer, tmp_path, words, said):
    more = () if "-o" in words else ("-o", tmp_path / "f.json")
    code, out, err = answer("calibrate", "fit", ONE, *words, *more)
    assert (code, out) == (2, "")
    assert said in err


def test_an_unknown_header_is_refused(answer, tmp_path):
    (tmp_path / "m.csv").write_text("a,b\n1,2\n")
    code, _, err = answer("score", tmp_path / "m.csv")
    assert code == 2
    assert "header of no known form" in err
    assert "columns: a, b" in err


def test_all_files_of_a_folder_are_scored(answer, tmp_path):
    head, *lines = (DATA / "fsdp" / "measured.csv").read_text().splitlines()
    for name, part in (("one", lines[:5]), ("two", lines[5:9])):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *part]))
    code, out, _ = answer("score", tmp_path, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["rows"], found["format"]) == (9, "fsdp")
    assert found["mape"] > 0
    fitted = tmp_path / "fitted.json"
    words = ("calibrate", "fit", tmp_path, "--train", "gpus <= 8", "-o", fitted)
    assert answer(*words)[0] == 0
    code, out, _ = answer("score", tmp_path, "--cluster", fitted, "--json")
    assert (json.loads(out)["rows"], json.loads(out)["left_out"]) == (2, 7)
    (tmp_path / "none").mkdir()
    code, _, err = answer("score", tmp_path / "none")
    assert code != 0
    assert "no measured rows" in err
