"""ParaDL's rows: constants of some runs predict all others, and other networks."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from jaxdist.calibrate.fit import fit
from jaxdist.calibrate.fitted_constants import make_fitted_constants
from jaxdist.calibrate.formats.paradl import ParadlFormat
from jaxdist.calibrate.formats.registry import FORMATS, detect_format
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import ScoredRow, score_predictions, score_rankings
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster

HERE = Path(__file__).parent / "data" / "paradl"
RUNS, RANKED = HERE / "runs.csv", HERE / "ranking.csv"
SPATIAL, RANKED_VGG16 = HERE / "spatial.csv", HERE / "ranking_vgg16.csv"
FORM = ParadlFormat()


def read(path):
    return FORM.read(path, load_cluster("abci"))


def fitted_to(text):
    rows = read(RUNS)
    found = fit(FORM, parse_row_filter(text).select(rows), FORM.constants)
    return make_fitted_constants(FORM, "abci", found, text, RUNS.name)


@pytest.fixture(scope="module")
def small():
    return fitted_to("devices<=8")


def test_no_more_than_three_constants_are_fitted(small):
    names = [one["name"] for one in small.constants]
    assert names == ["reduce", "staging", "map_dense"]
    # No row of ResNet50 says anything about the third, which stays what it was.
    assert small.values["map_dense"] == pytest.approx(2.7e8, rel=1e-3)
    assert small.values["reduce"] == pytest.approx(0.475, abs=0.01)
    assert small.values["staging"] == pytest.approx(0.92, abs=0.02)


def test_runs_on_more_gpus_are_predicted(small):
    found = score_predictions(read(RUNS), small)
    assert found.num_fitted == 7
    # 64 GPUs in data are 86 %: what they wait for is not in the model.
    assert found.total.mean_accuracy > 0.955
    groups = found.groups
    assert groups["resnet50, data"].mean_accuracy > 0.91
    assert groups["resnet50, data+spatial"].mean_accuracy > 0.97
    assert groups["resnet50, data+filter"].mean_accuracy > 0.97


def test_strategies_and_models_that_were_not_fitted_are_predicted():
    groups = score_predictions(read(RUNS), fitted_to("strategy != data")).groups
    assert groups["vgg16, data"].mean_accuracy > 0.96
    groups = score_predictions(
        read(RUNS), fitted_to("strategy in (data, data+filter)")
    ).groups
    assert groups["resnet50, data+spatial"].mean_accuracy > 0.96


@pytest.mark.parametrize(
    ("network", "other", "runs", "worst"),
    [("vgg16", "alexnet", 0.95, 0.9), ("alexnet", "vgg16", 0.95, 0.95)],
)
def test_a_network_that_was_not_fitted_is_predicted(network, other, runs, worst):
    # The rate of dense layers that read a map is fitted to the other network that has
    # them, and begins at that of a host's link.
    begin = [
        replace(one, initial=one.high) if one.name == "map_dense" else one
        for one in FORM.constants
    ]
    form = replace(FORM, constants=tuple(begin))
    rows = [row for path in (RUNS, SPATIAL) for row in read(path)]
    train = [row for row in rows if row.columns["model"] != network]
    found = fit(form, train, begin, allow_noisy=True)
    assert found.values["map_dense"] == pytest.approx(2.7e8, rel=0.05)
    known = make_fitted_constants(form, "abci", found, f"all but {network}", "runs")
    mine = [row for row in rows if row.columns["model"] == network]
    scored = score_predictions(mine, known)
    assert scored.num_fitted == 0
    assert scored.total.mean_accuracy > runs
    # Nine of ten, of eight: the intervals are those of networks left out in turn.
    assert sum(not one.is_covered for one in scored.rows) <= 1
    assert max(row.error for row in scored.rows) < 1 - worst
    if network == "vgg16":
        ranked = score_predictions(read(RANKED_VGG16), known)
        # Spatial + data is behind filter + data here, and in front with ResNet50.
        assert score_rankings(ranked.rows).right == 1
        assert ranked.total.mean_accuracy > 0.87
        assert max(row.error for row in ranked.rows) < 0.2


def test_the_ranking_is_right_with_constants_of_other_rows(small):
    found = score_predictions(read(RANKED), small)
    ranks = score_rankings(found.rows)
    assert found.num_fitted == 0
    # ParaDL's own predictions of these rows are 73 % accurate.
    assert found.total.mean_accuracy > 0.88
    assert (ranks.right, ranks.contests) == (4, 4)
    assert (ranks.pairs_right, ranks.pairs) == (14, 14)


def test_pairs_that_are_predicted_alike_or_turned_are_not_in_order(small):
    rows = [row for row in read(RANKED) if row.devices == 64]
    told = [ScoredRow(row=row, predicted=row.measured, baseline=1.0) for row in rows]
    right = score_rankings(told)
    assert (right.pairs_right, right.right) == (6, 1)
    turned = [ScoredRow(row=row, predicted=-row.measured, baseline=1.0) for row in rows]
    assert score_rankings(turned).accuracy == 0
    alike = [ScoredRow(row=row, predicted=1.0, baseline=1.0) for row in rows]
    assert score_rankings(alike).pairs_right == 0
    assert score_rankings(score_predictions(read(RUNS), small).rows) is None


def test_predictions_add_up_from_terms_and_stay_what_they_were(small):
    rows = {row.label: row for row in read(RUNS)}
    row = rows["resnet50 data+spatial, 32 devices, batch 2048"]
    values = {"reduce": 0.5, "staging": 0.9, "map_dense": 2.7e8}
    assert row.predict(values) == pytest.approx(sum(row.predict_terms(values).values()))
    assert row.predict(values) == pytest.approx(0.88032, rel=1e-4)
    assert {"update", "scatter"} <= set(row.predict_terms(values))
    ranked = read(RANKED)[0].predict_terms(values)
    assert not {"update", "scatter", "input"} & set(ranked)
    vgg = rows["vgg16 data, 8 devices, batch 256"]
    assert vgg.predict(values) == pytest.approx(0.45283, rel=1e-4)


def test_runs_on_one_device_are_profiles_and_not_rows():
    with RUNS.open() as file:
        lines = list(csv.DictReader(file))
    single = [line for line in lines if line["gpus"] == "1"]
    assert len(single) == 2
    assert len(read(RUNS)) == len(lines) - len(single)
    assert min(row.devices for row in read(RUNS)) == 2


def test_a_run_is_known_again_without_columns_that_are_not_read(small, tmp_path):
    lines = [line.split(",") for line in RUNS.read_text().splitlines()]
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("\n".join(",".join(line[1:]) for line in lines))
    assert score_predictions(read(fewer), small).num_fitted == 7


def test_both_headers_are_told_from_others(tmp_path):
    for path in (RUNS, RANKED):
        assert detect_format(path, None, FORMATS).name == "paradl"
    other = tmp_path / "other.csv"
    other.write_text("model,gpus\nvgg16,8\n")
    with pytest.raises(BadInput, match="no known form"):
        detect_format(other, None, FORMATS)


def test_rows_are_of_one_kind_of_device():
    with pytest.raises(BadInput, match="not of dgx-a100"):
        FORM.read(RUNS, load_cluster("dgx-a100"))


def test_a_row_that_cannot_be_is_refused_with_its_line(tmp_path):
    text = RANKED.read_text().splitlines()
    broken = tmp_path / "ranking.csv"
    broken.write_text("\n".join([*text[:3], text[3].replace("32", "-32", 1)]))
    with pytest.raises(BadInput, match="line 4 of ranking"):
        read(broken)
    broken.write_text("\n".join([text[0], text[1].replace("resnet50", "resnet5")]))
    with pytest.raises(BadInput, match=r"line 2 of ranking\.csv: no layers of resnet5"):
        read(broken)
    broken.write_text("\n".join([text[0], text[1].replace("spatial", "spatail")]))
    with pytest.raises(BadInput, match=r"line 2 of ranking\.csv: no strategy spatail"):
        read(broken)


def test_a_serial_run_is_a_profile_like_any_other_on_one_device(tmp_path):
    lines = RUNS.read_text().splitlines()
    serial = lines[1].replace("data,data", "serial,serial", 1)
    mixed = tmp_path / "runs.csv"
    mixed.write_text("\n".join([lines[0], serial, *lines[2:]]))
    assert [row.key for row in read(mixed)] == [row.key for row in read(RUNS)]
    mixed.write_text("\n".join([*lines[:2], lines[2].replace("data,data", "x,serial")]))
    with pytest.raises(BadInput, match=r"line 3 of runs\.csv: serial on 2 devices"):
        read(mixed)
