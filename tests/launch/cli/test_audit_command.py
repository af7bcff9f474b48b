"""`jaxdist audit EXPERIMENT`: what it prints, what it writes, and when it fails."""

import json

import jax
import pytest
from flax import nnx
from jax import lax

from jaxdist.launch.cli.main import main
from jaxdist.layers import Conv
from jaxdist.layers.manual_axes import manual_axes
from jaxdist.models import registry

SMALL = ("model.width=4", "data.batch=8", "plan.mesh.data=2")


@pytest.fixture
def answer(job, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words, command="audit"):
        code = main([command, "digits", f"data.dir={job.data}", *SMALL, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


class Gathering(nnx.Module):
    """A network whose second layer reads the samples of all devices."""

    def __init__(self, rngs):
        self.conv = Conv(1, 4, (3, 3), rngs=rngs)
        self.dense = nnx.Linear(4, 10, rngs=rngs)

    def __call__(self, x):
        x = self.conv(x)
        if manual_axes(("data",)):
            with jax.named_scope("spy"):
                x += lax.all_gather(x, "data").mean(0)
        return self.dense(x.mean((1, 2)))


@pytest.fixture
def gathering(monkeypatch):
    monkeypatch.setattr(
        registry, "make_model", lambda settings, dtype, rngs: Gathering(rngs)
    )


def test_everything_is_equal_and_nothing_is_written(answer, tmp_path):
    code, out, err = answer()
    assert (code, err) == (0, "")
    assert out.startswith("digits    data 2 x spatial_h 2    4 devices (cpu, fake)\n")
    assert "as planned, 0 unplanned all-gathers\n" in out
    lines = [line.split() for line in out.splitlines()]
    halos = next(x for x in lines if x[:2] == ["collective-permute", "spatial_h"])
    assert halos[3] == halos[4] == halos[5]
    assert next(x for x in lines if x[:1] == ["block2.conv2"])[-3:] == [
        "27.27",
        "%",
        "1.09",
    ]
    assert max(map(len, out.split("  try")[0].splitlines())) <= 100
    assert not list(tmp_path.iterdir())


def test_json_has_bytes_and_flops(answer):
    code, out, err = answer("--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["equal"]
    assert (found["differences"], found["unplanned_all_gathers"]) == ([], 0)
    assert {"kind", "axes", "count", "ledger", "program", "wire"} <= set(
        found["collectives"][0]
    )
    for row in found["collectives"]:
        same = [r for r in found["ledger"] if r["axes"] == row["axes"]]
        planned = sum(r["payload"] for r in same if r["kind"] == row["kind"])
        assert planned == row["ledger"] == row["program"]
    assert found["memory_bytes"]["total"] > found["memory_bytes"]["arguments"] > 0
    work = {row["layer"]: row for row in found["work"]}
    conv = work["block3.conv1"]
    assert conv["planned"] == pytest.approx(conv["device"], rel=0.01)
    assert work["stem.norm"]["planned"] is None
    assert work["head.dense"]["repeats"] == pytest.approx(2, rel=0.01)
    assert found["flops"]["device"] == sum(row["device"] for row in found["work"])


def test_one_device_moves_nothing(answer):
    code, out, err = answer("plan.mesh.data=1", "plan.mesh.spatial_h=1")
    assert code == 0, err
    assert "0 collectives, as planned" in out


def test_images_split_until_a_block_are_planned_work_and_bytes(answer):
    code, out, err = answer("plan.spatial_end=block3", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["plan"] == "data 2 x spatial_h 2 until block3"
    assert (found["differences"], found["unplanned_all_gathers"]) == ([], 0)
    gathers = [row for row in found["ledger"] if row["what"] == "gather"]
    assert [row["kind"] for row in gathers] == ["all-gather", "reduce-scatter"]
    work = {row["layer"]: row for row in found["work"]}
    assert work["block2.conv1"]["repeats"] < 1.1
    assert work["block3.conv1"]["repeats"] == pytest.approx(2, rel=0.01)
    assert work["block3.conv1"]["planned"] == work["block3.conv1"]["device"]


def test_rows_for_samples_repeat_no_work(answer):
    words = "plan.spatial_end=block3", "plan.spatial_end_mode=samples"
    code, out, err = answer(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    gathers = [row for row in found["ledger"] if row["what"] == "gather"]
    assert [row["kind"] for row in gathers] == ["all-to-all"]
    work = {row["layer"]: row for row in found["work"]}
    assert work["block3.conv1"]["repeats"] == pytest.approx(1, rel=0.01)
    assert work["head.dense"]["repeats"] == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan.spatial_end=blok3"], "did you mean plan.spatial_end=block3?"),
        (["plan.spatial_end=stem"], "the blocks are stem, block1, block2, block3"),
        (
            ["plan.spatial_end=block3", "plan.mesh.spatial_h=1"],
            "plan.spatial_end is for a spatial axis larger than one",
        ),
    ],
)
def test_a_split_that_cannot_end_there_is_refused(answer, words, says):
    code, out, err = answer(*words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_gather_fails_and_its_layer_is_named(answer, gathering):
    code, out, err = answer("plan.mesh.spatial_h=1")
    assert code == 1
    assert "from the plan, 1 unplanned all-gather\n" in out
    assert err.startswith("error: the compiled step does not move what the plan says\n")
    assert "all-gather over data" in err
    assert "spy" in err


@pytest.mark.parametrize("word", ["--warn", "audit=warn"])
def test_a_difference_is_a_warning_where_that_is_asked(answer, gathering, word):
    code, out, err = answer("plan.mesh.spatial_h=1", word)
    assert code == 0, err
    assert "1 unplanned all-gather" in out
    assert err.startswith("warn: the compiled step does not move what the plan says\n")


def test_what_training_refuses_the_audit_refuses(answer):
    code, out, err = answer("plan.mesh.data=3")
    assert (code, out) == (2, "")
    assert err.startswith("error: the global batch does not divide over the mesh\n")


def test_a_dry_run_of_training_is_an_audit(answer, tmp_path):
    code, out, err = answer("--dry-run", command="train")
    assert (code, err) == (0, "")
    assert out == answer()[1]
    assert not list(tmp_path.iterdir())


def test_nothing_is_trained_on_a_target(answer):
    code, out, err = answer("--target", "tpu-v5p:2x2x2", command="train")
    assert (code, out) == (2, "")
    assert "remedy   jaxdist train digits --dry-run --target tpu-v5p:2x2x2" in err


@pytest.mark.parametrize(("word", "code"), [("audit=fail", 1), ("audit=warn", 0)])
def test_training_stops_at_a_difference_or_says_it(
    job, gathering, capsys, tmp_path, word, code
):
    where = f"data.dir={job.data}", f"run.dir={tmp_path}"
    layout = "plan.mesh.data=2", "plan.mesh.spatial_h=1", "data.batch=8"
    words = ("train", "digits", *where, *layout, "epochs=0.01", word)
    with jax.numpy_dtype_promotion("standard"):  # as for a person at a terminal
        assert main(words) == code
    printed = capsys.readouterr()
    if code:
        assert "\nerror: the compiled step does not move what" in printed.err
        assert not (tmp_path / "digits" / "summary.json").exists()
    else:
        words = " ".join(printed.out.split())
        assert "differences from the plan" in words
        assert "warn: the compiled step does not move what the plan says" in words
