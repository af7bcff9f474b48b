"""Samples come from peers, whole or not at all; training's order depends on none."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.input.local_shuffle.source import LocalShuffleSource
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.sources import ArraySource

HOSTS = 4
X = np.arange(3 * 320, dtype=np.float32).reshape(320, 3)
SOURCE = ArraySource({"x": X, "y": np.arange(320)})
LIKE = SOURCE.get(np.zeros(1, np.int64))


class Stalled(PeerServer):
    """Answers too late."""

    def sample_table(self, ids):
        time.sleep(1)
        return super().sample_table(ids)


class Flipping(PeerServer):
    """Turns a bit of the first sample of every answer."""

    sent = 0

    def sample_table(self, ids):
        table = super().sample_table(ids)
        rows = table.column("key x").to_pylist()
        rows = [bytes([rows[0][0] ^ 1]) + rows[0][1:], *rows[1:]] if rows else rows
        type(self).sent += bool(rows)
        return table.set_column(2, "key x", pa.array(rows, pa.binary()))


class Doubling(PeerServer):
    """Sends everything twice, and a sample that nobody asked for."""

    def sample_table(self, ids):
        table, other = super().sample_table(ids), self._store.ids()[:1]
        return pa.concat_tables([table, table, super().sample_table(other)])


class Mad(PeerServer):
    """Sends a table of another kind."""

    def sample_table(self, ids):
        return pa.table({"id": pa.array([1, 2])})


def test_a_sample_that_is_dropped_while_it_is_read_is_not_sent():
    """Another thread keeps other samples in its place: nothing is damaged."""

    class Dropping(ArrayStore):
        def get(self, ids):
            found = super().get(ids)
            self.drop([7])
            return found

    store = Dropping(LIKE, 4)
    ids = np.array([3, 7])
    store.put(ids, SOURCE.get(ids))
    with PeerServer(store, "127.0.0.1:0") as server:
        assert server.sample_table(ids).column("id").to_pylist() == [3]


@pytest.fixture
def cluster():
    """Makes hosts that serve each other; `kinds` says what is wrong with which."""
    servers, asking = [], []

    def make(kinds=(), deadline_s=5.0):
        shuffle = PartialShuffle(samples=320, partitions=8, exchange_count=8, seed=5)
        order = PartialShuffleOrder(shuffle=shuffle, batch=16)
        stores = [ArrayStore(LIKE, 120) for _ in range(HOSTS)]
        made = dict(kinds)
        servers.extend(
            made.get(host, PeerServer)(store, "127.0.0.1:0", "word")
            for host, store in enumerate(stores)
        )
        addresses = [server.address for server in servers]
        keepers = []
        for host, store in enumerate(stores):
            how = dict(addresses=addresses, example=LIKE, deadline_s=deadline_s)
            peers = PeerClient(**how, token="word")
            asking.append(peers)
            own = dict(
                host=host,
                num_hosts=HOSTS,
                store=store,
                fetcher=peers,
                retention_steps=2,
            )
            keepers.append(LocalShuffleSource(dataset=SOURCE, order=order, **own))
            keepers[-1].fill_store(0)
        return order, keepers

    make.servers = servers
    yield make
    for peers in asking:
        peers.close()
    for server in servers:
        server.shutdown()


def train(order, keepers, steps):
    """Every host reads its rows and exchanges, one behind the other."""
    for step in range(steps):
        rows = np.split(order.ids(step), HOSTS)
        for keeper, ids in zip(keepers, rows, strict=True):
            read = keeper.get(ids)
            assert np.array_equal(read["y"], ids)
            assert np.array_equal(read["x"], X[ids])
        for keeper in keepers:
            keeper.exchange(step)


def total(keepers, name):
    return sum(getattr(keeper.counts, name) for keeper in keepers)


def test_what_comes_is_brought_by_peers(cluster):
    order, keepers = cluster()
    train(order, keepers, 60)
    # In three epochs 8 of each of 8 partitions, 1 of 7 to the host's other one.
    assert total(keepers, "received") == pytest.approx(3 * 64 * 6 / 7, rel=0.1)
    assert total(keepers, "dataset_reads") == 0
    assert sum(k.fetcher.fetched_count for k in keepers) == total(keepers, "received")
    share = 320 // HOSTS
    assert max(k.store.peak_count for k in keepers) <= share + 2 * order.batch // HOSTS


def test_a_dead_peer_costs_its_own_samples_alone(cluster):
    order, keepers = cluster()
    train(order, keepers, 10)
    cluster.servers[1].shutdown()
    train_from = total(keepers, "dataset_reads")
    assert train_from == 0
    for step in range(10, 40):
        rows = np.split(order.ids(step), HOSTS)
        for keeper, ids in zip(keepers, rows, strict=True):
            assert np.array_equal(keeper.get(ids)["y"], ids)
        for keeper in keepers:
            keeper.exchange(step)
    assert 0 < total(keepers, "dataset_reads") < total(keepers, "received") / 2
    assert [k.fetcher.failed_calls > 0 for k in keepers] == [True, False, True, True]


def test_a_stalled_peer_is_left_alone_behind_its_deadline(cluster):
    order, keepers = cluster({2: Stalled}, deadline_s=0.2)
    train(order, keepers, 20)
    assert [k.fetcher.failed_calls for k in keepers] == [1, 1, 0, 1]
    assert total(keepers, "dataset_reads") > 0


def test_every_flipped_bit_is_noticed(cluster):
    Flipping.sent = 0
    order, keepers = cluster(dict.fromkeys(range(HOSTS), Flipping))
    train(order, keepers, 60)
    assert Flipping.sent > 50
    assert sum(k.fetcher.corrupt_count for k in keepers) == Flipping.sent
    assert total(keepers, "dataset_reads") == Flipping.sent


@pytest.mark.parametrize("kind", [Doubling, Mad])
def test_what_was_not_asked_for_is_left(cluster, kind):
    order, keepers = cluster(dict.fromkeys(range(HOSTS), kind))
    train(order, keepers, 60)
    assert (total(keepers, "dataset_reads") == 0) == (kind is Doubling)


def test_of_what_comes_only_what_was_asked_for_is_taken(cluster):
    _, keepers = cluster(dict.fromkeys(range(HOSTS), Doubling))
    ids = keepers[1].store.ids()[5:8]
    found = keepers[0].fetcher.fetch(ids, np.ones(3, np.int64))
    assert sorted(found) == ids.tolist()


def test_another_token_is_refused(cluster):
    order, keepers = cluster()
    keepers[0].fetcher.token = "guess"
    train(order, keepers, 20)
    assert keepers[0].fetcher.fetched_count == 0
    assert keepers[0].counts.dataset_reads == keepers[0].counts.received > 0


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.1.2.3:80", "host2:80"])
def test_nothing_is_served_to_anyone(address):
    with pytest.raises(BadInput, match="served to anyone"):
        PeerServer(ArrayStore(LIKE, 1), address)


SERVE = """
import sys, time
import numpy as np
from jaxdist.input.local_shuffle.flight import PeerServer
from jaxdist.input.local_shuffle.store import ArrayStore
x = np.arange(960, dtype=np.float32).reshape(320, 3)
store = ArrayStore({"x": x[:1], "y": np.arange(1)}, 320)
store.put(np.arange(320), {"x": x, "y": np.arange(320)})
server = PeerServer(store, "127.0.0.1:0")
print(server.address, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process():
    """A peer in a process of its own, and its address."""
    started = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True
    )
    yield started, started.stdout.readline().strip()
    started.kill()
    started.wait()
    started.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_is_gone_brings_nothing(process, how):
    peer, address = process
    peers = PeerClient(addresses=[address], example=LIKE, deadline_s=1.0)
    ids, hosts = np.array([3, 300]), np.zeros(2, np.int64)
    found = peers.fetch(ids, hosts)
    assert sorted(found) == [3, 300]
    assert np.array_equal(found[300]["x"], X[300:301])
    os.kill(peer.pid, how)
    os.waitpid(peer.pid, os.WUNTRACED)  # until it has stopped, or is gone
    assert peers.fetch(ids, hosts) == {}
    assert (peers.fetched_count, peers.failed_calls) == (2, 1)
    peers.close()
