"""Killed at any moment, a run finds the newest whole checkpoint and goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.files import MARKER_SUFFIX, FolderMarker
from jaxdist.train.checkpoint import orbax_store, reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints

RUN = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState

mesh = Mesh(jax.devices()[:4], ("data",), axis_types=(AxisType.Auto,))

def numbers(step):
    kernel = np.random.default_rng(step).normal(size=(1024, 512)).astype(np.float32)
    params = {f"block{n}": jnp.asarray(kernel + np.float32(n)) for n in range(8)}
    state = TrainState(step=jnp.int32(step), params=params, stats={}, opt=())
    return jax.device_put(state, NamedSharding(mesh, P()))

checkpoints = Checkpoints(sys.argv[1], max_to_keep=2)
target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), numbers(0)
)
found = checkpoints.restore_newest(target)
start = found.step if found else 0
if found:
    assert not found.skipped_checkpoints, found.skipped_checkpoints
    same = jax.tree.map(lambda a, b: bool((a == b).all()), found.state, numbers(start))
    assert jax.tree.all(same), "restored numbers differ"
print("from", start, flush=True)
for step in range(start + 1, int(sys.argv[2]) + 1):
    checkpoints.save(numbers(step))
checkpoints.close()
"""


def begin(folder, last):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def unfinished(folder):
    return list(folder.glob(f"*{orbax_store.INCOMPLETE_SUFFIX}*"))


def kill_inside_a_commit(child, folder, after):
    """Freeze the child inside a commit, make sure that it is, then kill it there."""
    while child.poll() is None:
        if unfinished(folder) and reader.list_steps(folder)[-1:] >= (after,):
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(0.05)  # until every thread has stopped
            if unfinished(folder):
                os.kill(child.pid, signal.SIGKILL)
                child.communicate()
                assert unfinished(folder), "the kill was not inside a commit"
                return
            os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.002)
    raise AssertionError(f"the child ended by itself: {child.communicate()[1]}")


def test_a_kill_inside_the_commit_loses_no_earlier_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    start = 0
    for after in (1, 3):
        child = begin(folder, 1000)
        assert child.stdout.readline() == f"from {start}\n"
        kill_inside_a_commit(child, folder, after)
        start = reader.list_steps(folder)[-1]
        assert start >= after
        for step in reader.list_steps(folder):
            assert reader.find_corruption(folder / str(step)) is None
    child = begin(folder, start + 2)
    out, err = child.communicate()
    assert (out, err, child.returncode) == (f"from {start}\n", "", 0)
    assert reader.list_steps(folder) == (start + 1, start + 2)
    assert not unfinished(folder)


def plant(folder, name):
    (folder / name / "state").mkdir(parents=True)
    (folder / name / "state" / "part").write_bytes(np.zeros(8).tobytes())


def dead_marker(folder, step, **changes):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    owner = {"host": socket.gethostname(), "pid": child.pid, "start_time": 1, **changes}
    path = folder / f".{step}{MARKER_SUFFIX}"
    path.write_text(json.dumps(owner))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_leftovers_of_the_dead_go_at_the_next_start_and_no_others(tmp_path, kit):
    retired, part = (f"{n}{orbax_store.INCOMPLETE_SUFFIX}" for n in (3, 7))
    plant(tmp_path, f"{retired}-retired")
    plant(tmp_path, part)
    for step in (3, 7):
        dead_marker(tmp_path, step)
    # Without a marker; with one of another host; of a name that begins alike.
    others = [f"{n}{orbax_store.INCOMPLETE_SUFFIX}" for n in (8, 9)]
    others.append(f"{part}.bak")
    for name in others:
        plant(tmp_path, name)
    far = dead_marker(tmp_path, 9, host="another-host")
    (tmp_path / "note.txt").write_text("mine")
    before = names(tmp_path)

    assert reader.list_steps(tmp_path) == ()
    target = kit.abstract(kit.make_state(), 1)
    reading = Checkpoints(tmp_path, read_only=True)
    assert reading.restore_newest(target) is None
    reading.close()
    assert names(tmp_path) == before

    Checkpoints(tmp_path).restore_newest(target)
    assert names(tmp_path) == sorted(["note.txt", far.name, *others])
    # Whoever has the run's lock knows that no other host is at work.
    Checkpoints(tmp_path, exclusive=True).restore_newest(target)
    others.remove(f"9{orbax_store.INCOMPLETE_SUFFIX}")
    assert names(tmp_path) == sorted(["note.txt", *others])


def test_an_unfinished_save_of_nobody_is_moved_aside(tmp_path, kit):
    name = f"8{orbax_store.INCOMPLETE_SUFFIX}"
    plant(tmp_path, name)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(kit.make_state(8))
    checkpoints.close()
    assert names(tmp_path) == ["8", f"unowned-{name}"]
    assert (tmp_path / f"unowned-{name}" / "state" / "part").stat().st_size == 64


def test_readers_beside_a_run_that_saves_change_nothing(tmp_path, kit):
    saving = Checkpoints(tmp_path, max_to_keep=2)
    target = kit.abstract(kit.make_state(), 1)
    for step in range(1, 5):
        saving.save(kit.make_state(step))
        # The save is under way: neither a reader nor another start ends it.
        for reading in (Checkpoints(tmp_path, read_only=True), Checkpoints(tmp_path)):
            reading.restore_newest(target)
            reading.close()
    saving.close()
    assert names(tmp_path) == ["3", "4"]


def test_two_that_save_one_step_are_told_apart(tmp_path, kit):
    with FolderMarker.create(tmp_path / f".8{MARKER_SUFFIX}").file:
        checkpoints = Checkpoints(tmp_path)
        with pytest.raises(BadInput, match="another process is at work") as refused:
            checkpoints.save(kit.make_state(8))
        checkpoints.close()
    assert str(os.getpid()) in refused.value.values
    assert names(tmp_path) == [f".8{MARKER_SUFFIX}"]


def test_a_reader_never_saves(tmp_path, kit):
    with pytest.raises(ValueError, match="read-only"):
        Checkpoints(tmp_path, read_only=True).save(kit.make_state(1))
    assert names(tmp_path) == []
