"""With several hosts all come to the same verdict, though each reads its own part."""

import json
import socket
import subprocess
import sys

RUN = """
import json, os, sys
from pathlib import Path

rank, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
import jax

jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
import jax.numpy as jnp, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.checkpoint.checksum import params_digest
from jaxdist.train.checkpoint.remote_copies import RemoteCopies
from jaxdist.train.state import TrainState

mesh = Mesh(jax.devices(), ("data",), axis_types=(AxisType.Auto,))
rows, copied = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

def whole(step):
    return np.random.default_rng(step).normal(size=(64, 32)).astype(np.float32)

def numbers(step):
    def place(array, layout):
        return jax.make_array_from_callback(array.shape, layout, lambda at: array[at])
    params = {"rows": place(whole(step), rows), "copied": place(whole(step + 100), copied)}
    return TrainState(step=place(np.int32(step), copied), params=params, stats={}, opt=())

def same(state, step):
    return all(
        (np.asarray(shard.data) == whole(step)[shard.index]).all()
        for shard in state.params["rows"].addressable_shards
    )

checkpoints = Checkpoints(folder)
for step in (1, 2):
    checkpoints.save(numbers(step))
checkpoints.wait()
multihost_utils.sync_global_devices("saved")
alone = [reader.find_corruption(folder / str(step)) for step in (1, 2)]
multihost_utils.sync_global_devices("verified")
if rank == 0:
    for path in (folder / "2" / "state").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
multihost_utils.sync_global_devices("damaged")
target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), numbers(0)
)
found = checkpoints.restore_newest(target)
again = checkpoints.save(numbers(2))
final = checkpoints.restore_newest(target)
# With a store, whose copy replaces what is damaged: one host downloads it.
with_store = Checkpoints(folder, copies=RemoteCopies(sys.argv[4]))
if rank == 0:
    with_store.fetch_newest()
    with_store.wait()
    for path in (folder / "2" / "state").rglob("d/*"):
        path.write_bytes(b"")
multihost_utils.sync_global_devices("damaged again")
replaced = with_store.restore_newest(target)
with_store.close()
print(json.dumps({
    "replaced": [replaced.step, bool(same(replaced.state, 2))],
    "alone": alone, "step": found.step, "same": bool(same(found.state, 1)),
    "skipped": [skip.text() for skip in found.skipped_checkpoints], "again": again,
    "final": final.step, "bits": bool(same(final.state, 2)),
    "digest": params_digest(final.state.params),
}))
checkpoints.close()
jax.distributed.shutdown()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_hosts_save_skip_and_restore_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    port, folder = str(free_port()), str(tmp_path / "checkpoints")
    store = f"file://{tmp_path}/store"
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(rank), port, folder, store],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [host.communicate(timeout=100) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    one, other = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert one == other
    assert one["alone"] == [None, None]
    assert (one["step"], one["same"]) == (1, True)
    assert len(one["skipped"]) == 1
    assert one["skipped"][0].startswith("checkpoint 2 skipped: ")
    assert (one["again"], one["final"], one["bits"]) == (True, 2, True)
    assert one["replaced"] == [2, True]
    assert (tmp_path / "checkpoints" / "damaged-2").is_dir()
    assert (tmp_path / "checkpoints" / "damaged-2-2").is_dir()
