"""What a process keeps delays nothing, fits its disk, and is of one data set."""

import subprocess
import sys
import time
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.input import ArraySource, Keep, Partial
from jaxdist.input.batch_assembly import TrainBatchAssembler
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder, order_from_config
from jaxdist.input.local_shuffle.setup import SampleStoreRuntime
from jaxdist.input.local_shuffle.shuffle import PartialShuffle, valid_host_counts
from jaxdist.input.local_shuffle.source import LocalShuffleSource, max_retention_steps
from jaxdist.input.local_shuffle.store import ArrayStore, make_store

X = np.arange(3 * 320, dtype=np.float32).reshape(320, 3)
SOURCE = ArraySource({"x": X, "y": np.arange(320)})
ORDER = order_from_config(
    Partial(exchange_fraction=0.25, partitions=8), num_samples=320, batch=16, seed=5
)
ALL = np.arange(16)


def read(source):
    return TrainBatchAssembler(source=source, order=ORDER, dtypes={"x": "float32"})


@pytest.fixture
def kept():
    made = SampleStoreRuntime(SOURCE, ORDER, ALL, Keep(), 0)
    yield made
    made.close()


def among_two(kept, peers):
    """Make it host 0 of 2, so that something comes."""
    kept.source.num_hosts, kept.source.fetcher = 2, peers
    kept.source.fill_store(0)
    return kept.assembler(read)


class Late:
    """Peers that bring nothing before they may."""

    def __init__(self):
        self.may = Event()

    def fetch(self, ids, hosts):
        assert self.may.wait(60)
        return {}


def test_what_comes_late_delays_no_batch(kept):
    recipe, start = among_two(kept, Late()), time.monotonic()
    for step in range(8):
        batch = recipe(step, ALL)
        assert np.array_equal(batch["x"], X[ORDER.ids(step)])
    assert kept.source.counts.received == 0
    assert time.monotonic() - start < 30
    kept.source.fetcher.may.set()
    assert kept.sample_counts()["exchanged"] > 0


def test_batches_wait_for_what_is_half_an_epoch_late(kept):
    recipe = among_two(kept, Late())
    for step in range(10):  # half of 20
        recipe(step, ALL)
    next_step = Thread(target=recipe, args=(10, ALL))
    next_step.start()
    next_step.join(0.5)
    assert next_step.is_alive()
    kept.source.fetcher.may.set()
    next_step.join(60)
    assert not next_step.is_alive()


def test_a_failed_exchange_ends_the_batches(kept):
    class Broken:
        def fetch(self, ids, hosts):
            raise RuntimeError("broken")

    recipe = among_two(kept, Broken())
    with pytest.raises(RuntimeError, match="broken"):
        [recipe(step, ALL) for step in range(20)]


class Neighbours:
    """Brings what the others' stores hold at this moment."""

    def __init__(self, keepers):
        self.keepers = keepers

    def fetch(self, ids, hosts):
        found = {}
        for sample, host in zip(ids.tolist(), hosts.tolist()):
            arrays, good = self.keepers[host].store.get(np.array([sample]))
            if good[0]:
                found[sample] = arrays
        return found


@st.composite
def cases(draw):
    partitions = draw(st.sampled_from([2, 4, 8]))
    slots = draw(st.integers(2, 20))
    samples = partitions * slots + draw(st.integers(0, partitions - 1))
    shuffle = PartialShuffle(
        samples=samples,
        partitions=partitions,
        exchange_count=draw(st.integers(0, slots)),
        seed=5,
    )
    order = PartialShuffleOrder(
        shuffle=shuffle, batch=partitions * draw(st.integers(1, 3))
    )
    return order, draw(st.sampled_from(valid_host_counts(partitions)))


@settings(max_examples=60)
@given(cases())
def test_what_stays_for_hosts_behind_is_two_steps_worth_at_most(case):
    order, hosts = case
    source = ArraySource({"x": np.arange(order.num_samples)})
    keepers = []
    for host in range(hosts):
        store = ArrayStore(source.get(np.arange(1)), 4 * order.num_samples)
        how = dict(dataset=source, order=order, host=host, num_hosts=hosts, store=store)
        peers = Neighbours(keepers)
        keepers.append(
            LocalShuffleSource(
                **how, fetcher=peers, retention_steps=max_retention_steps(order)
            )
        )
        keepers[-1].fill_store(0)
    for step in range(order.steps(3)):
        for keeper in keepers:
            keeper.exchange(step)
    for keeper in keepers:
        most = keeper.counts.partition_samples + 2 * order.batch // hosts
        assert keeper.store.peak_count <= most


FULL = """
import resource, sys, warnings
from pathlib import Path
import numpy as np
from jaxdist.input import ArraySource, Partial
from jaxdist.input.local_shuffle.source import make_local_shuffle_source
from jaxdist.input.local_shuffle.partial import order_from_config

x = np.random.default_rng(0).random((320, 1000))
order = order_from_config(Partial(exchange_fraction=0.25, partitions=8), num_samples=320, batch=16, seed=5)
source = ArraySource({"x": x})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    own = make_local_shuffle_source(source, order, host=0, num_hosts=1, folder=Path(sys.argv[1]))
own.fill_store(0)
for step in range(60):
    ids = order.ids(step)
    assert np.array_equal(own.get(ids)["x"], x[ids])
    own.exchange(step)
print(own.counts.capacity_misses, own.counts.store_misses, said[0].message)
"""


def test_a_disk_without_room_changes_no_batch(tmp_path):
    """A process that may write 100 kB a file, of 2.6 MB."""
    words = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    without, strays, said = done.stdout.split(maxsplit=2)
    assert int(without) >= 319
    assert int(strays) > 900
    assert "room for 0 of 360 samples" in said


def test_what_is_left_of_another_data_set_is_not_taken(tmp_path):
    ids, other = np.arange(320), ArraySource({"x": X + 1, "y": np.arange(320)})
    make_store(SOURCE, 320, tmp_path).put(ids, SOURCE.get(ids))
    assert len(make_store(SOURCE, 320, tmp_path)) == 320
    assert len(make_store(other, 320, tmp_path)) == 0


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be kept in") as caught:
        make_store(SOURCE, 320, tmp_path / "file" / "store")
    assert "data.cache=memory" in caught.value.remedy[1]


@pytest.mark.system
def test_a_full_disk_holds_what_it_can(tmp_path):
    """A file system of 1 MiB, for samples of 3.2 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    try:
        x = np.random.default_rng(0).random((400, 1000))
        source = ArraySource({"x": x})
        with pytest.warns(JaxdistWarning, match=r"room for \d+ of 400 samples"):
            store = make_store(source, 400, tmp_path / "store")
        assert 50 < store.free_slots < 131
        kept = np.arange(store.free_slots)
        store.put(kept, source.get(kept))
        found, good = store.get(kept)
        assert good.all()
        assert np.array_equal(found["x"], x[kept])
        del store, found
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
