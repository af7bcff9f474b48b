"""`jaxdist bytes`: an experiment's columns, a script's, and what is refused."""

import json

import pytest

from jaxdist.launch.cli.main import main
from jaxdist.launch.testbed.link_shaping import frame_bytes

SMALL = ("model.width=4", "data.batch=8", "plan.mesh.data=2")
SCRIPT = """
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
add = jax.shard_map(
    lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
)
step = jax.jit(add)
args = (jax.ShapeDtypeStruct((8, 4), jnp.bfloat16),)
"""


@pytest.fixture
def answer(job, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(["bytes", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("more", [(), ("precision=bfloat16", "plan.mesh.fsdp=2")])
def test_planned_written_and_compiled_bytes_are_equal(answer, job, tmp_path, more):
    words = "digits", f"data.dir={job.data}", *SMALL, *more
    code, out, err = answer(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["rows"]
    for row in found["rows"]:
        assert row["formula"] == row["stablehlo"] == row["compiled"], row
    assert len(set(found["total"].values())) == 1
    assert not list(tmp_path.iterdir())


def test_one_device_sends_nothing(answer, job):
    alone = "plan.mesh.data=1", "plan.mesh.spatial_h=1"
    code, out, _ = answer("digits", f"data.dir={job.data}", *SMALL, *alone)
    assert code == 0
    assert out.splitlines()[-1].split()[-3:] == ["0", "0", "0"]


@pytest.mark.system
@pytest.mark.hosts
@pytest.mark.timeout(400)
def test_interfaces_count_at_least_what_the_compiled_step_sends(answer, job):
    words = *SMALL, "plan.mesh.spatial_h=1", "--wire", "--json"
    code, out, err = answer("digits", f"data.dir={job.data}", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert len(found["interfaces"]) == 2
    for sent in found["interfaces"]:
        # Each of some 30 collectives of a few bytes costs headers of a kilobyte or two.
        assert frame_bytes(found["total"]["compiled"]) < sent
        assert sent < frame_bytes(found["total"]["compiled"]) + 100_000


def test_one_device_has_no_links(answer, job):
    alone = "plan.mesh.data=1", "plan.mesh.spatial_h=1"
    code, out, err = answer("digits", f"data.dir={job.data}", *SMALL, *alone, "--wire")
    assert (code, out) == (2, "")
    assert "the plan has 1 device\n" in err


def test_a_script_is_not_run(answer, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    code, _, err = answer("mine.py:step", "--wire")
    assert code == 2
    assert "the step of a script is not run" in err


def test_a_script_has_two_columns(answer, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    code, out, err = answer("mine.py:step")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["all-reduce", "data", "24", "48"] in lines


def test_a_script_has_no_keys(answer, tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    code, out, err = answer("mine.py:step", "seed=1")
    assert (code, out) == (2, "")
    assert "remedy   jaxdist bytes mine.py:step" in err
