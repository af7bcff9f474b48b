"""`jaxdist plan table`: tables of plans ranked, and held against what was measured."""

import json
from dataclasses import replace

import pytest

from jaxdist.calibrate.fitted_constants import initial_constants, write_constants
from jaxdist.calibrate.formats.vtrain import VTrainFormat
from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.planning.plan_rows import PlanRow, read_plan_rows
from jaxdist.launch.planning.plan_table import RankedPlan, score_ranking

TINY = ("gpt2_small", "model.size=tiny", "data.context=16", "data.batch=16")
SMALL = (*TINY, "model.depth=4")
ON = ("--cluster", "dgx-a100")


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(text):
        (tmp_path / "plans.csv").write_text(text)
        return "plans.csv"

    return make


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main(["plan", "table", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_columns_have_the_names_that_people_give_them(write, tmp_path):
    write(
        "# TP,DP size,Pipeline parallelism,micro batch,cuts,time (ms),plan.remat,who\n"
        "2,4,2,8,block2,1500,true,a\n"
        '1,8,,,"[0, 3, 6]",OOM,,b\n'
        "1,8,,,,,,c\n"
    )
    first, second, third = read_plan_rows(tmp_path / "plans.csv")
    assert first.mesh == {"tensor": 2, "data": 4, "pipe": 2}
    assert (first.microbatch, first.cuts, first.measured_s) == (8, ("block2",), 1.5)
    assert first.settings == {"plan.remat": "true"}
    assert first.labels == {"who": "a"}
    assert second.mesh == {"tensor": 1, "data": 8, "pipe": 1}
    assert (second.failed, second.measured_s, second.microbatch) == (True, None, None)
    # Boundaries may be written with both ends, and by their number of blocks.
    blocks = tuple("abcdef")
    assert second.cut_blocks(blocks) == ("d",)
    with pytest.raises(BadInput, match="block 7"):
        replace(second, cuts=("7",)).cut_blocks(blocks)
    assert (third.failed, third.measured_s, third.cuts) == (False, None, ())
    # The end `_size` belongs to sizes of axes alone.
    write("tp_size,step_size,time_size\n2,4,8\n")
    (row,) = read_plan_rows(tmp_path / "plans.csv")
    assert (row.mesh["tensor"], row.measured_s) == (2, None)
    assert row.labels == {"step_size": "4", "time_size": "8"}
    write("tensor,status,seconds\n1,ok,2\n2,failed,3\n4,success,-1\n")
    rows = read_plan_rows(tmp_path / "plans.csv")
    assert [(row.failed, row.measured_s) for row in rows] == [
        (False, 2.0),
        (True, None),
        (True, None),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seconds,who\n1,a\n", "how it is split"),
        ("tensor,tp\n1,2\n", "two columns for tensor"),
        ("tensor,data\n1.5,2\n", "row 1: tensor"),
        ("tensor,data\n1,0\n", "row 1: data"),
        ("tensor,data\n", "no rows"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(answer, write, text, says):
    code, out, err = answer(write(text), *TINY, *ON)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (TINY, "which machine"),
        (("no_such", *ON), "no_such"),
        ((*TINY, *ON, "--program", "megatrn"), "--program megatron"),
        (("digits", *ON, "--program", "megatron"), "no GPT-2"),
        ((*TINY, "--cluster", "cpu-fake", "--program", "megatron"), "float16"),
    ],
)
def test_what_is_wrong_with_all_rows_is_an_error(answer, write, words, says):
    code, _, err = answer(write("data\n2\n"), *words)
    assert code == 2
    assert says in err


def test_a_column_that_is_not_read_is_said(answer, write):
    table = write("tp,dp,mbz,who\n1,2,4,a\n")
    code, out, _ = answer(table, *TINY, *ON)
    assert code == 0
    assert "not read as a part of plans: mbz, who" in out


def test_rows_are_predicted_as_plans_alone_are(answer, write, capsys):
    table = write(
        "tensor,data,pipe,microbatch,cuts,plan.remat\n"
        "1,4,2,2,block2,\n1,8,1,1,,\n2,4,1,2,,true\n1,3,1,1,,\n1,4,1,3,,\n"
    )
    code, out, err = answer(table, *SMALL, *ON, "--json", "-o", "plan.json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["fitting"], found["score"]) == (5, 3, None)
    ranked = found["plans"]
    assert [one["rank"] for one in ranked] == [1, 2, 3, None, None]
    seconds = [one["step_s"] for one in ranked[:3]]
    assert seconds == sorted(seconds)
    assert {one["row"] for one in ranked[3:]} == {4, 5}
    assert all("does not divide" in one["reason"] for one in ranked[3:])

    words = {
        1: ("plan.mesh.data=4", "plan.mesh.pipe=2", "plan.pipe.cuts=block2"),
        2: ("plan.mesh.data=8",),
        3: ("plan.mesh.data=4", "plan.mesh.tensor=2", "plan.remat=true"),
    }
    for one in ranked[:3]:
        typed = (*words[one["row"]], "optim.accumulate=2")
        assert main(["predict", *SMALL, *typed, *ON, "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert one["step_s"] == pytest.approx(alone["step_s"], rel=1e-9)
    # The file has the first plan, which is predicted alike.
    assert main(["predict", *SMALL, "--plan", "plan.json", *ON, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["step_s"] == pytest.approx(seconds[0], rel=1e-9)


def test_megatron_has_memory_and_cuts_of_its_own(answer, write):
    table = write(
        "tensor,data,pipe,microbatch,cuts,seconds\n"
        "1,1,4,4,,0.5\n1,1,4,4,6 12 18,oom\n1,1,4,4,block2 block4 block6,\n"
        "1,4,1,4,,0.7\n1,1,5,4,,\n1,1,4,4,block9 block3 block6,\n"
    )
    gpt2 = ("gpt2_small", "model.depth=24", "data.batch=16", *ON)
    code, out, _ = answer(table, *gpt2, "--program", "megatron", "--json")
    assert code == 0
    rows = {one["row"]: one for one in json.loads(out)["plans"]}
    # Five blocks of the embedding's chain are in front: not the layers' own quarters.
    assert rows[2]["step_s"] != rows[1]["step_s"]
    assert rows[3]["step_s"] > 1.5 * rows[1]["step_s"]
    assert rows[3]["memory_bytes"] > rows[1]["memory_bytes"]
    assert rows[5]["fits"]
    assert "no layers" in rows[6]["reason"]
    # With as little memory as one plan needs the others are rejected, with the reason.
    limit = str(rows[1]["memory_bytes"])
    words = (*gpt2, "--program", "megatron", "--memory", limit)
    found = json.loads(answer(table, *words, "--json")[1])
    again = {one["row"]: one for one in found["plans"]}
    assert again[1]["fits"]
    assert again[1]["rank"] is not None
    assert not again[3]["fits"]
    assert again[3]["reason"].startswith("out of memory by")
    assert found["score"]["failed"] == 1
    shown = answer(table, *words)[1]
    assert "rejected" in shown
    assert "Spearman" in shown


def test_fitted_rates_are_megatrons(answer, write, tmp_path):
    table = write("data\n4\n")
    gpt2 = ("gpt2_small", "data.batch=16", *ON, "--json")
    values = {"matmul": 0.5, "memory": 0.5, "issue": 1e-2}
    values |= {"network": 0.5, "inside": 0.5, "call": 0.0}
    constants = initial_constants(VTrainFormat(), "vtrain-a100")
    path = tmp_path / "fitted.json"
    write_constants(replace(constants, values=values), path)
    plain = json.loads(answer(table, *gpt2, "--program", "megatron")[1])
    words = ("--program", "megatron", "--rates", str(path))
    slower = json.loads(answer(table, *gpt2, *words)[1])
    # The host issues an operation in 10 ms: devices wait for it all the time.
    terms = [one["plans"][0]["terms_s"] for one in (plain, slower)]
    waits = [each.get("wait for the host", 0.0) for each in terms]
    assert waits[1] > 1.0 > 10 * waits[0]
    code, _, err = answer(table, *gpt2, "--rates", str(path))
    assert code == 2
    assert "--program megatron" in err


def ranked(number, step_s, measured_s=None, *, failed=False, reason=""):
    row = PlanRow(
        number=number,
        mesh={},
        microbatch=None,
        cuts=(),
        settings={},
        measured_s=measured_s,
        failed=failed,
    )
    return RankedPlan(row=row, step_s=step_s, reason=reason)


def test_the_score_by_hand():
    plans = [
        ranked(1, 1.0),  # nobody ran it
        ranked(2, 1.0, 1.1),
        ranked(3, 2.0, 1.0),
        ranked(4, 3.0, 4.0),
        ranked(5, 2.5, 5.0, reason="out of memory"),
        ranked(6, 4.0, failed=True),
        ranked(7, None, failed=True, reason="does not divide"),
    ]
    score = score_ranking(plans)
    assert (score.measured, score.failed) == (4, 2)
    # Predicted ranks 1 2 4 3, measured 2 1 3 4: differences squared 1 1 1 1.
    assert score.spearman == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert score.regret == pytest.approx(0.1)
    assert score.mape == pytest.approx((0.1 / 1.1 + 1 + 0.25 + 0.5) / 4)
    assert score.failed_rejected == 0.5
    assert score.running_rejected == 0.25
    assert score_ranking([plans[0]]) is None
    assert score_ranking([plans[5], plans[1]]).regret is None
    assert score_ranking(plans[1:2]).spearman is None
