"""A run in stages: trained, evaluated, and gone on with in other stages or none."""

import json

import pytest

pytestmark = pytest.mark.timeout(300)

SIZES = ("model.width=4", "epochs=0.2", "optim.accumulate=4", "plan.mesh.spatial_h=1")

FLOWS = ("plan.pipe.schedule=pipedream",)


def test_a_run_without_a_flush_resumes_with_as_many_updates_a_step(job, tmp_path):
    words = ("train", "digits", *SIZES, f"run.dir={tmp_path}", "--json", *FLOWS)
    words += (f"data.dir={job.data}",)
    replicas = "plan.mesh.pipe=3", "plan.pipe.replicas=2,1", "plan.mesh.data=1"
    code, out, err = job.call(*words, *replicas)
    assert code == 0, err
    first = json.loads(out)
    assert (first["steps"], first["held_out"]) == (5, 360)
    again = "epochs=0.4", "plan.mesh.pipe=2", "plan.mesh.data=4", "--change"
    # The replicas of its stages are stored, too.
    again += ("plan.pipe.replicas=",)
    code, out, err = job.call(*words, *again)
    assert code == 0, err
    assert json.loads(out)["resumed_at"] == 5
    code, _, err = job.call(*words, *again, "plan.pipe.schedule=1f1b")
    assert code == 2
    assert "4 with plan.pipe.schedule = pipedream, optim.accumulate = 4; now 1" in err


def test_a_run_changes_its_stages_as_it_resumes(job, tmp_path):
    """And takes what compressed gradients left along, to other devices."""
    words = ("train", "digits", *SIZES, f"run.dir={tmp_path}", "--json")
    words += ("plan.reduce.algorithm=int8", f"data.dir={job.data}")
    code, out, err = job.call(*words, "plan.mesh.pipe=4", "plan.mesh.data=2")
    assert code == 0, err
    first = json.loads(out)
    assert (first["steps"], first["held_out"]) == (5, 360)
    again = "epochs=0.4", "plan.mesh.pipe=2", "plan.mesh.data=4", "--change"
    code, out, err = job.call(*words, *again, "plan.pipe.schedule=zb-h1")
    assert code == 0, err
    second = json.loads(out)
    assert (second["resumed_at"], second["steps"]) == (5, 9)
    code, out, err = job.call("eval", tmp_path / "digits", "--json")
    assert code == 0, err
    assert json.loads(out)["loss"] == pytest.approx(second["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan.mesh.pipe=2", "plan.pipe.cuts=blok2"), "plan.pipe.cuts=block2"),
        (("plan.mesh.pipe=8",), "there are more stages than blocks"),
        (("plan.mesh.pipe=2", "plan.pipe.schedule=1f2b"), "1f1b"),
        (("plan.mesh.pipe=2", "plan.pipe.schedule=interleaved"), "chunks"),
        (
            ("plan.mesh.pipe=2", "plan.pipe.schedule=zb-h1", "plan.pipe.chunks=2"),
            "plan.pipe.schedule=interleaved plan.pipe.chunks=2",
        ),
        (("plan.mesh.pipe=5", "plan.pipe.schedule=zb-h1"), "optim.accumulate=5"),
        (
            ("plan.mesh.pipe=2", "plan.reduce.algorithm=power"),
            "does not go with stages",
        ),
        (("plan.mesh.pipe=2", "plan.reduce.algorithm=sign"), "a sign has no zero"),
        (
            ("plan.mesh.pipe=2", *FLOWS, "plan.reduce.algorithm=int8"),
            "does not go with",
        ),
        (("plan.mesh.pipe=2", *FLOWS, "plan.pipe.chunks=2"), "does not take chunks"),
        (("plan.mesh.pipe=2", *FLOWS, "optim.clip=1"), "optim.clip=0"),
        (("plan.mesh.pipe=2", *FLOWS, "plan.mesh.fsdp=2"), "plan.mesh.data=2"),
        (
            ("plan.mesh.pipe=2", "plan.pipe.weight_stashing=false"),
            "does nothing in this",
        ),
        (("plan.mesh.pipe=4", *FLOWS, "plan.pipe.replicas=2,1"), "plan.mesh.pipe=3"),
        (("plan.mesh.pipe=5", *FLOWS, "plan.pipe.replicas=3,2"), "optim.accumulate=6"),
        (
            (
                "plan.mesh.pipe=2",
                "plan.pipe.schedule=pipedream-2bw",
                "plan.pipe.microbatches_per_update=3",
            ),
            "optim.accumulate=3",
        ),
        (("plan.mesh.pipe=2", "optim.accumulate=3"), "does not divide"),
    ],
    ids=lambda case: case[-1] if isinstance(case, tuple) else "",
)
def test_what_cannot_be_cut_is_refused_before_anything_is_written(
    job, tmp_path, words, said
):
    base = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    base += (f"data.dir={job.data}", f"run.dir={tmp_path}")
    code, _, err = job.call("train", "digits", *base, *words)
    assert code == 2, err
    assert said in err
    assert not list(tmp_path.iterdir())
