"""`jaxdist ckpt` reads checkpoints with one processor and without their model."""

import argparse
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.commands import ckpt
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.checkpoint.checksum import params_digest
from jaxdist.train.state import TrainState


def numbers(step):
    kernel = np.random.default_rng(step).normal(size=(16, 32)).astype(np.float32)
    params = {
        "stem": {"kernel": jnp.asarray(kernel), "bias": jnp.ones((8,), jnp.bfloat16)}
    }
    opt = (jax.random.key(step), jnp.zeros((0,)))
    return TrainState(step=jnp.int32(step), params=params, stats={}, opt=opt)


@pytest.fixture
def folder(tmp_path):
    """Checkpoints 1 and 20, saved from 16 devices."""
    mesh = Mesh(jax.devices(), ("data",), axis_types=(AxisType.Auto,))
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 20):
        state = numbers(step)
        params = state.params["stem"]
        params["kernel"] = jax.device_put(
            params["kernel"], NamedSharding(mesh, P("data"))
        )
        checkpoints.save(state, {"model": "resnet8"})
    checkpoints.close()
    return tmp_path


def damage(folder, step):
    """Put the arrays of another step under the notes of this one."""
    path = folder / str(step) / "state"
    path.rename(folder / "state-before")
    (folder / "1" / "state").rename(path)
    (folder / "state-before").rename(folder / "1" / "state")


def as_json(capsys, *args):
    code = ckpt.act(*args, as_json=True)
    out, err = capsys.readouterr()
    assert err == ""
    return code, json.loads(out)


@pytest.mark.parametrize("action", ["ls", "verify", "inspect", "hash"])
def test_what_a_run_deletes_meanwhile_is_not_damaged(
    folder, action, monkeypatch, capsys
):
    """The oldest goes while it is read, as a run that saves deletes it."""
    real, steps = reader.read_manifest, reader.list_steps(folder)

    def read(path):
        if path.name == str(steps[-1]) and path.exists():
            path.rename(path.with_name(f"{path.name}.orbax-checkpoint-tmp-retired"))
        return real(path)

    monkeypatch.setattr(reader, "read_manifest", read)
    assert ckpt.act(action, folder, None, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    rows = found.get("checkpoints", [found])
    assert [row["step"] for row in rows][-1] == steps[-2]
    assert not any(row.get("damage") for row in rows)


def test_ls_gives_step_bytes_age_and_verdict(folder, capsys):
    code, found = as_json(capsys, "ls", folder, None)
    assert code == 0
    rows = found["checkpoints"]
    assert [(row["step"], row["damage"]) for row in rows] == [(1, None), (20, None)]
    assert all(row["bytes"] > 2048 and row["age_s"] >= 0 for row in rows)


def test_inspect_gives_leaves_and_notes(folder, capsys):
    code, found = as_json(capsys, "inspect", folder, None)
    assert (code, found["step"], found["about"]) == (0, 20, {"model": "resnet8"})
    kernel = found["leaves"]["params/stem/kernel"]
    assert (kernel["shape"], kernel["dtype"], kernel["bytes"]) == (
        [16, 32],
        "float32",
        2048,
    )
    assert found["leaves"]["opt/0"]["key"] == "threefry2x32"
    assert found["bytes"] == 4 + 2048 + 16 + 8


def test_verify_names_the_damaged_leaf_and_fails(folder, capsys):
    assert as_json(capsys, "verify", folder, None)[0] == 0
    damage(folder, 20)
    code, found = as_json(capsys, "verify", folder, 20)
    assert code == 1
    (row,) = found["checkpoints"]
    assert row["damage"].startswith("opt/0, checksum ")
    assert as_json(capsys, "ls", folder, None)[0] == 0


def test_hash_is_the_digest_of_the_parameters_in_memory(folder, capsys):
    code, found = as_json(capsys, "hash", folder, None)
    assert (code, found["params_sha256"]) == (0, params_digest(numbers(20).params))
    assert as_json(capsys, "hash", folder, 1)[1]["params_sha256"] == params_digest(
        numbers(1).params
    )


def test_hash_of_damaged_parameters_is_refused(folder, capsys):
    damage(folder, 20)
    code, found = as_json(capsys, "hash", folder, None)
    assert code == 1
    assert found["damage"].startswith("params/stem/kernel, checksum ")
    assert "params_sha256" not in found


def test_people_get_tables(folder, capsys):
    for action in ("ls", "inspect", "verify", "hash"):
        assert ckpt.act(action, folder, None, as_json=False) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "2 checkpoints" in out
    assert "float32  " in out
    assert "[16, 32]" in out
    assert out.splitlines()[-1] == params_digest(numbers(20).params)
    damage(folder, 20)
    assert ckpt.act("verify", folder, None, as_json=False) == 1
    assert "damaged   checkpoint 20  opt/0, checksum " in capsys.readouterr().out


def test_an_empty_folder_lists_nothing_and_has_no_newest(tmp_path, capsys):
    assert as_json(capsys, "ls", tmp_path, None)[1]["checkpoints"] == []
    with pytest.raises(BadInput, match="no checkpoint in"):
        ckpt.act("hash", tmp_path, None, as_json=True)


def test_a_step_that_is_not_there_is_refused(folder):
    with pytest.raises(BadInput, match="checkpoints: 1, 20"):
        ckpt.act("inspect", folder, 3, as_json=True)


def test_what_may_be_typed():
    parser = argparse.ArgumentParser()
    ckpt.add_arguments(parser)
    args = parser.parse_args(["verify", "runs/digits", "--checkpoint", "20", "--json"])
    assert (args.action, args.run, args.checkpoint, args.json) == (
        *("verify", "runs/digits", 20, True),
    )


def test_one_device_is_enough_and_nothing_but_the_answer_is_printed(folder):
    script = (
        "import sys, pathlib\n"
        "from jaxdist.launch.cli.commands import ckpt\n"
        f"sys.exit(ckpt.act('hash', pathlib.Path({str(folder)!r}), None, as_json=False))"
    )
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = params_digest(numbers(20).params) + "\n"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)
