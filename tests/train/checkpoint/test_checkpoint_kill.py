"""Killed at any moment, a run finds the newest whole checkpoint and goes on."""

import os
import signal
import subprocess
import sys
import time

import numpy as np

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


def test_leftovers_are_no_checkpoints_and_go_at_the_next_start(tmp_path):
    for name in (
        f"7{orbax_store.INCOMPLETE_SUFFIX}",
        f"3{orbax_store.INCOMPLETE_SUFFIX}-retired",
    ):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "part").write_bytes(np.zeros(8).tobytes())
    (tmp_path / "note.txt").write_text("mine")
    assert reader.list_steps(tmp_path) == ()
    Checkpoints(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
