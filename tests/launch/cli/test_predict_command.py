"""`jaxdist predict` and `jaxdist calibrate`: what they print and refuse."""

import json

import pytest

from jaxdist.calibrate import kernels
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.cli.main import main
from jaxdist.meshes.clusters.load import load_cluster


def refused(capsys, *words):
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_a_prediction_is_one_object(capsys):
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "--cluster", "testbed")
    assert main(["predict", "digits", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"] == pytest.approx(sum(found["terms_s"].values()))
    assert found["memory_bytes"] == sum(found["memory_by_term"].values())
    assert found["interval_s"][0] < found["step_s"] < found["interval_s"][1]
    assert set(found["origins"]) > {"device.memory", "levels.net.alpha"}
    assert main(["predict", "digits", *words]) == 0
    assert f"MFU {format_percent(found['mfu'])}\n" in capsys.readouterr().out


def test_what_fits_without_its_margin_alone_is_said_so(capsys):
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "--cluster", "testbed")
    assert main(["predict", "digits", *words, "--json"]) == 0
    needed = json.loads(capsys.readouterr().out)["memory_bytes"]
    for share, said in (
        (0.9, "does not fit\n"),
        (1.01, "does not fit with the margin of 35 % for estimates\n"),
        (1.5, ": fits\n"),
    ):
        room = f"device.memory={round(share * needed)} B"
        assert main(["predict", "digits", *words, "--what-if", room]) == 0
        assert said in capsys.readouterr().out


def test_what_cannot_be_predicted_is_refused(capsys, tmp_path):
    said = refused(capsys, "predict", "digits")
    assert "a prediction is for a cluster" in said
    said = refused(capsys, "predict", "digits", "--cluster", "testbad")
    assert "did you mean testbed" in said
    said = refused(capsys, "predict", "digits", "--cluster", "testbed")
    assert "needs more devices" in said
    said = refused(capsys, "predict", "digits", "--cluster", "abci", "--rows", "x<1")
    assert "no option --rows" in said


def test_what_is_hidden_is_shown_beside_what_is_not(capsys):
    words = ("digits", "plan.mesh.data=4", "plan.mesh.spatial_h=1")
    asked = ("predict", *words, "--cluster", "testbed")
    assert main([*asked, "--what-if", "overlap=0.5"]) == 0
    assert "hidden behind computing" in capsys.readouterr().out
    assert main([*asked, "--what-if", "overlap=0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hidden_s"].keys() == {"all-reduce, data"}
    assert main([*asked, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["hidden_s"] == {}
    hidden = found["hidden_s"]["all-reduce, data"]
    assert found["step_s"] == pytest.approx(whole["step_s"] - hidden)
    for share, rule in (
        ("1.5", "overlap is a share"),
        ("-1", "0 or"),
        ("x", "no unit"),
    ):
        assert rule in refused(capsys, *asked, "--what-if", f"overlap={share}")


def test_words_that_calibrate_does_not_know_are_refused(capsys):
    assert "fitt" in refused(capsys, "calibrate", "fitt", "rows.csv")
    assert "did you mean digits" in refused(capsys, "calibrate", "digit")
    assert "required: FILE" in refused(capsys, "calibrate", "read")
    assert "which rows to fit" in refused(capsys, "calibrate", "fit", "rows.csv")


def test_no_devices_are_not_measured(capsys):
    said = refused(capsys, "calibrate", "--devices", "0")
    assert "--devices is a multiple" in said


def test_layers_are_added_to_a_machine_that_was_measured(capsys):
    said = refused(capsys, "calibrate", "digits", "--cluster", "abci")
    assert "a file that calibrate wrote" in said
    said = refused(capsys, "calibrate", "--cluster", "abci")
    assert "an experiment says which layers" in " ".join(said.split())


@pytest.mark.slow  # docs/prediction.md runs these commands
def test_a_machine_and_then_the_layers_of_an_experiment(job, monkeypatch, tmp_path):
    """The second time nothing but layers is measured."""
    some = {1 << 10: ((1, 3), 3), 1 << 18: ((1, 2), 3)}
    monkeypatch.setattr("jaxdist.calibrate.collective_timings.MESSAGE_SIZES", some)
    # Few rounds: what is timed is looked at, not what it took.
    monkeypatch.setattr("jaxdist.calibrate.synchronized_timing._PILOT_ROUNDS", 1)
    monkeypatch.setattr("jaxdist.calibrate.synchronized_timing._LOOP_MAX_ROUNDS", 2)
    one = list(kernels.default_kernel_cases(1e6))
    monkeypatch.setattr(
        "jaxdist.calibrate.kernels.default_kernel_cases", lambda most: one
    )
    monkeypatch.setattr(
        "jaxdist.calibrate.measure_cluster.measure_compression_cost", lambda *a: {}
    )
    monkeypatch.setattr("jaxdist.calibrate.measure_cluster.MAX_CPU_FLOPS", 3e5)
    path = tmp_path / "mine.json"
    given = ("--devices", 2, "--allow-noisy", "--force", "-o", path)
    code, _, err = job.call("calibrate", *given)
    assert code == 0, err
    assert err.startswith("measuring 2 devices\n")
    before = load_cluster(str(path))
    words = ("digits", "data.batch=64", "--cluster", path, "--json")
    code, out, err = job.call("calibrate", "layers", *words, *given)
    assert code == 0, err
    after = load_cluster(str(path))
    assert after.levels == before.levels
    more = len(after.device.kernels.timed) - len(before.device.kernels.timed)
    assert more == len(json.loads(out)["kernels"]) == 3
    blocks = after.device.blocks.timed
    head = [one for one in blocks if one.key.startswith("Head-")]
    assert sorted(one.samples for one in head) == [1, 16, 32]
    assert len({one.key for one in head}) == 1
    assert before.device.blocks is None
    said = job.call("calibrate", *words[:-1], *given[2:])[1]
    assert "64 x 64 > 10" in said
    assert f"{head[0].key} " in said
    assert "2 devices at once" in load_cluster(str(path)).device.kernels.origin
    assert before.host_link.value > 0
    assert before.input_rate is None
    assert "calibrate digits, 2 devices" in after.input_rate.origin
    code, _, err = job.call("calibrate", *words, "--devices", 4, *given[2:])
    assert (code, "cluster of other devices" in err) == (2, True)
    assert "remedy   --devices 2" in err


def test_a_cluster_is_not_measured_for_a_folder_that_is_not_there(capsys, tmp_path):
    said = refused(capsys, "calibrate", "-o", str(tmp_path / "none" / "mine.json"))
    assert "none" in said


def test_what_accelerators_keep_of_blocks_computed_again_is_what_layers_say(capsys):
    """A trace is that of XLA's CPU backend, which computes loops alone again."""
    words = ("gpt2_small", "data.name=synthetic", "data.batch=8", "model.depth=4")
    words = ("predict", *words, "optim.accumulate=1", "plan.mesh.data=1", "--json")
    found = {}
    for cluster in ("dgx-a100", "testbed"):
        for again in ("true", "false"):
            asked = (*words, "--cluster", cluster, f"plan.remat={again}")
            assert main(list(asked)) == 0
            tree = json.loads(capsys.readouterr().out)["memory_by_term"]
            found[cluster, again] = tree
    unrolled = (*words, "--cluster", "dgx-a100", "plan.remat=true", "plan.scan=off")
    assert main(list(unrolled)) == 0
    kept = json.loads(capsys.readouterr().out)["memory_by_term"]
    assert "temporaries" not in kept
    most = found["dgx-a100", "false"]["temporaries"]
    assert kept["activations"] < 0.5 * most
    assert found["dgx-a100", "true"]["temporaries"] < 0.8 * most
    assert "temporaries" in found["testbed", "true"]


def test_stages_that_keep_more_than_int32_can_count_are_predicted(capsys):
    """GPT-2's vocabulary: a stage keeps 2^31 numbers of 40 windows, not of 20.

    Of whole logits: in chunks there are never so many.
    """
    words = ("model.depth=2", "model.embed=1024", "model.heads=16", "--json")
    words = (*words, "model.vocabulary=52256", "precision=bfloat16")
    words = (*words, "plan.logits=whole")
    plan = ("plan.mesh.data=1", "plan.mesh.pipe=2", "plan.pipe.cuts=block1")
    asked = ("gpt2_small", "--cluster", "dgx-a100", "optim.accumulate=1")
    found = []
    for batch in (20, 40):
        given = (*asked, *plan, *words, f"data.batch={batch}")
        assert main(["predict", *given]) == 0
        tree = json.loads(capsys.readouterr().out)["memory_by_term"]
        found.append(tree["temporaries"])
    assert found[1] > 2**32  # bytes of 2^31 bfloat16 numbers
    assert found[1] == pytest.approx(2 * found[0], rel=0.05)
