"""A run with compressed gradients goes on elsewhere, and is scored and loaded as any."""

import json

import pytest

pytestmark = pytest.mark.timeout(300)


def test_a_run_with_residuals_goes_on_on_fewer_devices_and_is_scored(job, tmp_path):
    here = (f"run.dir={tmp_path}", f"data.dir={job.data}", "run.name=sent")
    words = (
        *here,
        "model.width=4",
        "plan.reduce.algorithm=power",
        "plan.reduce.rank=1",
    )
    words += ("plan.mesh.spatial_h=1",)
    words += ("plan.reduce.min_compressed_elements=0", "plan.reduce.warmup_steps=1")
    words += ("plan.reduce.momentum=0.5", "optim.momentum=0")
    code, _, err = job.call("train", "digits", "epochs=0.2", *words)
    assert code == 0, err
    fewer = ("plan.mesh.data=2",)
    code, out, err = job.call(
        "train", "digits", "epochs=0.4", *words, *fewer, "--change"
    )
    assert code == 0, err
    # Lines are as wide as the terminal: a long folder breaks them.
    assert "resumed at step 5" in " ".join((out + err).split())
    code, out, err = job.call("eval", tmp_path / "sent", "--json")
    assert code == 0, err
    assert json.loads(out)["checkpoint"] == 9
    code, _, err = job.call(
        "train", "digits", "epochs=0.6", *words, "plan.reduce.algorithm=exact"
    )
    assert code == 2
    assert "plan.reduce.algorithm=power" in err
