"""Processes of one program keep their samples and hand each other what moves."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.setup import host_index_and_count, parse_peers
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


LINES = st.one_of(
    st.binary(max_size=30),
    st.tuples(st.integers(-1, 4), st.sampled_from(["10.0.0.3:80", "host:80"])).map(
        lambda pair: f"{pair[0]} {pair[1]}".encode().ljust(40)
    ),
)


def outcome(said, hosts):
    """The addresses, or their refusal."""
    try:
        return parse_peers(said, hosts)
    except BadInput as refused:
        return refused


@given(st.lists(LINES, max_size=4), st.integers(1, 3))
def test_what_processes_say_of_themselves_is_addresses_of_all_hosts(said, hosts):
    found = outcome(said, hosts)
    if isinstance(found, BadInput):
        assert all((found.rule, found.values, found.remedy))
    else:
        assert found == ["10.0.0.3:80"] * hosts


def test_a_host_that_nobody_is_has_a_name():
    with pytest.raises(BadInput, match="not every host") as refused:
        parse_peers([b"0 10.0.0.3:80", b"2 10.0.0.4:80"], 2)
    assert "0 to 1" in refused.value.rule
    assert "'2'" in refused.value.values
