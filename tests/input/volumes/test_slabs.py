"""Two processes read the slabs of their own devices, counted in bytes of the files."""

import json
import os
import signal
import socket
import subprocess
import sys

import h5py
import numpy as np
import pytest
from volume_files import volumes, write_nifti, write_npy_files, write_zarr_group

HOST = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
import jax, numpy as np
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jax.sharding import NamedSharding, PartitionSpec
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.config import DataConfig
from jaxdist.input.device_feed import eval_feed, train_feed
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.registry import open_data
from jaxdist.input.sample_validation import SampleSpec
from jaxdist.meshes.build import build_mesh

# Two devices a process: its slab is two blocks of four.
mesh = build_mesh(Plan(mesh=MeshShape(spatial_d=4)))
every = NamedSharding(mesh, PartitionSpec())
block = NamedSharding(mesh, PartitionSpec(None, "spatial_d"))
shardings = {"image": block, "mask": block, "id": every, "weight": every}
spec = SampleSpec(dtypes={"image": "float32", "mask": "int32"}, floats="all")

def read_chars():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])

def shards(batch):
    return {
        name: [[[[s.start, s.stop] for s in p.index], np.asarray(p.data).tolist()]
               for p in array.addressable_shards]
        for name, array in batch.items() if name in ("mask", "id")
    }

found = {}
for name in json.loads(sys.argv[5]):
    train, test = open_data(DataConfig(name=name))
    sample = sum(x.nbytes for x in train.template.values())
    depth = train.template["image"].shape[1]
    # Rows that do not divide are padded, as a layout pads them.
    rows = -(-depth // 4) * 4
    shapes = {
        key: jax.ShapeDtypeStruct((2, rows, *x.shape[2:]), x.dtype)
        for key, x in train.template.items()
    }
    order = GlobalShuffleOrder(num_samples=len(train), batch=2, seed=5)
    with train_feed(train, order, shardings, shapes=shapes, dtypes=spec) as feed:
        first = shards(next(feed))  # what is imported is read by now
    before, asked = read_chars(), train.bytes_read
    with train_feed(train, order, shardings, shapes=shapes, dtypes=spec) as feed:
        for _ in range(3):
            next(feed)
    asked, chars = train.bytes_read - asked, read_chars() - before
    with eval_feed(test, 2, shardings, shapes=shapes, dtypes=spec) as feed:
        scored = [shards(batch) for batch in feed]
    found[name] = {
        "first": first, "scored": scored, "asked": asked, "sample": sample,
        "depth": depth, "chars": chars,
    }
with open(sys.argv[4], "w") as file:
    json.dump(found, file)
"""


def run_hosts(folder, names):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    files = [folder / f"{rank}.json" for rank in range(2)]
    words = json.dumps(sys.path), json.dumps(names)
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOST, address, str(rank), words[0], file, words[1]],
            env=env,
        )
        for rank, file in enumerate(files)
    ]
    assert [host.wait() for host in hosts] == [0, 0]
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def reads(tmp_path_factory):
    """What each of two processes read, by data.name, and the arrays."""
    folder = tmp_path_factory.mktemp("slabs")
    draw = np.random.default_rng(0)

    def drawn(depth):
        return {
            split: {
                "image": draw.random((n, depth, 64, 64, 1)).astype(np.float32),
                "mask": draw.integers(0, 3, (n, depth, 64, 64), np.uint8),
            }
            for split, n in (("train", 6), ("test", 3))
        }

    arrays = drawn(64)
    with h5py.File(folder / "v.h5", "w") as file:
        for split, both in arrays.items():
            for key, array in both.items():
                file[f"{split}/{key}"] = array  # contiguous, as h5py writes by default
    uneven = drawn(30)
    found = {
        f"hdf5:{folder / 'v.h5'}": arrays,
        write_zarr_group(folder / "zarr", arrays): arrays,
        write_zarr_group(folder / "uneven", uneven): uneven,
    }
    return run_hosts(folder, list(found)), found


def test_a_process_asks_for_its_slab_and_nothing_else(reads):
    hosts, found = reads
    for name in found:
        depth = hosts[0][name]["depth"]
        # Of 30 rows, 32 with padding, the second process has 14.
        for host, rows in zip(
            hosts, (depth // 2, depth // 2) if depth == 64 else (16, 14)
        ):
            part = host[name]
            batches, rest = divmod(part["asked"], 2 * part["sample"] * rows // depth)
            assert rest == 0
            assert batches >= 3  # and what is read ahead


@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_bytes_that_the_kernel_read_are_those_of_the_slab(reads, kind):
    hosts, found = reads
    for name in found:
        if name.startswith(kind):
            for part in (host[name] for host in hosts):
                assert part["asked"] <= part["chars"] <= 1.05 * part["asked"], name


MAPPED = """
import json, os, sys
from pathlib import Path
sys.path[:] = json.loads(sys.argv[2])
import numpy as np
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data

train, _ = open_data(DataConfig(name=sys.argv[1]))
half = {k: (slice(0, x.shape[1] // 2), *map(slice, [0] * (x.ndim - 2), x.shape[2:]))
        for k, x in train.template.items()}
ids = np.arange(len(train))
want = train.get(ids)
# A page behind the end of a file that is mapped ends the process when it is touched.
memmap, whole = np.memmap, {}
def cut_behind(path, **how):
    Path(path).write_bytes(whole.setdefault(path, Path(path).read_bytes()))
    mapped = memmap(path, **how)
    os.truncate(path, len(whole[path]) // 2 + 512)
    return mapped
np.memmap = cut_behind
got = train.slab(half).get(ids)
print(all(np.array_equal(got[k], want[k][:, : x.shape[1]]) for k, x in got.items()))
sys.stdout.flush()
train.get(ids)
"""


@pytest.mark.parametrize("write", [write_npy_files, write_nifti])
def test_of_a_mapped_file_no_page_outside_of_the_slab_is_touched(write, tmp_path):
    name = write(tmp_path, volumes((64, 64, 64, 1), {"train": 2, "test": 1}))
    words = [sys.executable, "-c", MAPPED, name, json.dumps(sys.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert done.returncode == -signal.SIGBUS  # the whole of them


def test_together_they_hold_the_samples(reads):
    hosts, found = reads
    for name, arrays in found.items():
        for kind, split in (("first", "train"), ("scored", "test")):
            steps = [host[name][kind] for host in hosts]
            if kind == "first":
                steps = [[one] for one in steps]
            for first, second in zip(*steps, strict=True):
                (_, ids), *_ = first["id"]
                depth = arrays[split]["mask"].shape[1]
                got = np.full((2, -(-depth // 4) * 4, 64, 64), -1)
                for bounds, data in (*first["mask"], *second["mask"]):
                    got[tuple(slice(*pair) for pair in bounds)] = data
                for row, sample in enumerate(ids):
                    want = arrays[split]["mask"][sample]  # -1, a filler: the last one
                    np.testing.assert_array_equal(got[row, :depth], want)
                    assert not got[row, depth:].any()
