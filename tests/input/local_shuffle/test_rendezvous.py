"""Processes of one program keep their samples and hand each other what moves."""

import json
import sys

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.setup import host_index_and_count
from jaxdist.launch.launchers.processes.loopback import Loopback
from jaxdist.launch.testbed.hosts import EmulatedCluster

TRAIN = """
import json

import jax
import numpy as np
from jax.sharding import Mesh

from jaxdist.input import ArraySource, Keep, Partial, loader
from jaxdist.launch.distributed.jax_processes import peer_facing_address
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.distributed import initialize

rank = initialize()
source = ArraySource({"x": np.arange(160), "y": np.arange(160.0)})
mesh = Mesh(np.asarray(jax.devices()), ("data",))
how = dict(global_batch=16, shuffle=Partial(exchange_fraction=0.5, partitions=4), mesh=mesh)
seen = []
with loader(source, keep=Keep(interface=peer_facing_address(process_group())), **how) as batches:
    own = batches.store_runtime.source
    for _ in range(25):
        batch = next(batches)
        rows = np.asarray(batch["x"].addressable_data(0))
        assert (rows == np.asarray(batch["y"].addressable_data(0))).all()
        seen.append(rows.tolist())
    jax.experimental.multihost_utils.sync_global_devices("done")
counts = own.counts
print(json.dumps({"seen": seen, "fetched": own.fetcher.fetched_count,
                  "exchanged": counts.received, "origin": counts.dataset_reads}))
"""


def assert_trained(hosts):
    """Every sample once an epoch, some of them brought by the other host."""
    run = "import jax.experimental.multihost_utils\n" + TRAIN
    done = hosts.run((sys.executable, "-c", run), timeout=100)
    ranks = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    steps = [a + b for a, b in zip(*(rank["seen"] for rank in ranks), strict=True)]
    stream = np.concatenate(steps)
    for epoch in range(2):
        read = stream[160 * epoch : 160 * (epoch + 1)]
        assert np.array_equal(np.sort(read), np.arange(160))
    for rank in ranks:
        assert rank["fetched"] > 0
        assert rank["fetched"] + rank["origin"] == rank["exchanged"]


def test_two_processes_train_on_what_the_order_says():
    assert_trained(Loopback(2))


@pytest.mark.system
@pytest.mark.hosts
def test_two_hosts_bring_each_other_samples_over_their_link():
    with EmulatedCluster(2, "200mbit") as hosts:
        assert_trained(hosts)


def test_a_host_is_a_stretch_of_rows():
    assert host_index_and_count(np.arange(4, 8), 8) == (1, 2)
    assert host_index_and_count(np.arange(8), 8) == (0, 1)


@pytest.mark.parametrize("rows", [[0, 2, 4, 6], [2, 3, 4, 5], [0, 1, 2]])
def test_rows_here_and_there_cannot_be_kept(rows):
    with pytest.raises(BadInput, match="no samples of its own"):
        host_index_and_count(np.array(rows), 8)
