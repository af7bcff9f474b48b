"""Two processes feed one global batch, each reading its own rows only."""

import json
import os
import socket
import subprocess
import sys

import numpy as np

from jaxdist.input.augmentation import Augmentation
from jaxdist.input.batch_assembly import EvalBatchAssembler, TrainBatchAssembler
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.sources import ArraySource

N, BATCH, STEPS = 45, 16, 3
ORDER = GlobalShuffleOrder(num_samples=N, batch=BATCH, seed=5)

HOST = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
import jax, numpy as np
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jax.sharding import NamedSharding, PartitionSpec
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.device_feed import eval_feed, train_feed
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.sources import ArraySource
from jaxdist.meshes.build import build_mesh

class Counted(ArraySource):
    read = []
    def get(self, ids):
        self.read.append(len(ids))
        return super().get(ids)

images = np.random.default_rng(0).random((45, 8, 8, 1))
source = Counted({"image": images, "label": np.arange(45) % 10})
# Rows in the order host 0, 1, 0, 1: what a host holds is in two pieces.
sizes = MeshShape(data=2, fsdp=2, spatial_h=2)
mesh = build_mesh(Plan(mesh=sizes, placement=("data",)))
rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
image = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "spatial_h"))
shardings = {"image": image, "label": rows, "id": rows, "weight": rows}

def shards(batch):
    return {
        name: [[[[s.start, s.stop] for s in p.index[:2]], p.data.tolist()]
               for p in array.addressable_shards]
        for name, array in batch.items()
    }

order = GlobalShuffleOrder(num_samples=45, batch=16, seed=5)
with train_feed(source, order, shardings, augmentation=Augmentation(shift=1)) as feed:
    train = [shards(next(feed)) for _ in range(3)]
# One sample is read as the source is opened.
read = set(source.read) - {1}
with eval_feed(source, 16, shardings) as feed:
    test = [shards(batch) for batch in feed]
# Shards of the batch side by side in a host, those of the weights in both.
inside = build_mesh(Plan(mesh=MeshShape(data=2, tensor=4), placement=("data",)))
rows = NamedSharding(inside, PartitionSpec("data"))
shardings = dict.fromkeys(shardings, rows)
source.read.clear()
with train_feed(source, order, shardings, augmentation=Augmentation(shift=1)) as feed:
    whole = [shards(next(feed))]
found = {"train": train, "test": test, "read": sorted(read)}
found |= {"whole": whole, "all": sorted({*source.read} - {1})}
with open(sys.argv[4], "w") as file:
    json.dump(found, file)
"""


def run_hosts(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    files = [folder / f"{rank}.json" for rank in range(2)]
    hosts = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                HOST,
                address,
                str(rank),
                json.dumps(sys.path),
                file,
            ],
            env=env,
        )
        for rank, file in enumerate(files)
    ]
    assert [host.wait() for host in hosts] == [0, 0]
    return [json.loads(file.read_text()) for file in files]


def assemble(hosts, step, like):
    """Put the shards of all hosts together."""
    whole = {name: np.full(array.shape, np.nan) for name, array in like.items()}
    for host in hosts:
        for name, shards in host[step].items():
            for bounds, data in shards:
                whole[name][tuple(slice(*pair) for pair in bounds)] = data
    return whole


def test_two_hosts_give_the_batches_one_host_gives(tmp_path):
    hosts = run_hosts(tmp_path)
    assert [host["read"] for host in hosts] == [[BATCH // 2]] * 2
    assert [host["all"] for host in hosts] == [[BATCH]] * 2
    images = np.random.default_rng(0).random((N, 8, 8, 1))
    source = ArraySource({"image": images, "label": np.arange(N) % 10})
    recipes = {
        "train": TrainBatchAssembler(
            source=source, order=ORDER, augmentation=Augmentation(shift=1)
        ),
        "test": EvalBatchAssembler(source=source, batch=BATCH),
    }
    for kind, recipe in recipes.items():
        for step in range(STEPS):
            expected = recipe(step, np.arange(BATCH))
            got = assemble([host[kind] for host in hosts], step, expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)
    expected = recipes["train"](0, np.arange(BATCH))
    for host in hosts:
        got = assemble([host["whole"]], 0, expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)
