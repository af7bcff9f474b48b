"""Hosts keep their own samples, exchange what the order says, and lose nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput, FatalError
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle, valid_host_counts
from jaxdist.input.local_shuffle.source import LocalShuffleSource
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.sources import ArraySource


def source_of(samples):
    x = np.arange(3 * samples, dtype=np.float32).reshape(samples, 3)
    return ArraySource({"x": x, "y": np.arange(samples)})


def order_of(samples, partitions, exchanged, batch):
    shuffle = PartialShuffle(
        samples=samples, partitions=partitions, exchange_count=exchanged, seed=5
    )
    return PartialShuffleOrder(shuffle=shuffle, batch=batch)


def hosts_at(order, hosts, step=0, folder=None):
    """All hosts of a run, as they begin at a step."""
    source, made = source_of(order.num_samples), []
    places = (
        -(-order.num_samples // hosts)
        + order.shuffle.partitions // hosts
        + 2 * order.batch
    )
    for host in range(hosts):
        own = None if folder is None else folder / str(host)
        store = ArrayStore(source.get(np.arange(1)), places, own)
        kept = dict(
            dataset=source, order=order, host=host, num_hosts=hosts, store=store
        )
        made.append(LocalShuffleSource(**kept))
        made[-1].fill_store(step)
    return made


def run(keepers, order, first, last):
    """Every host reads its rows of some steps, each behind the other."""
    batches = []
    for step in range(first, last):
        rows = np.split(order.ids(step), len(keepers))
        batches.append([k.get(ids) for k, ids in zip(keepers, rows, strict=True)])
        for keeper in keepers:
            keeper.exchange(step)
    return batches


@st.composite
def cases(draw):
    partitions = draw(st.sampled_from([1, 2, 4, 6, 8]))
    slots = draw(st.integers(2, 20))
    samples = partitions * slots + draw(st.integers(0, partitions - 1))
    exchanged = draw(st.integers(0, slots)) if partitions > 1 else 0
    order = order_of(
        samples, partitions, exchanged, partitions * draw(st.integers(1, 2))
    )
    return order, draw(st.sampled_from(valid_host_counts(partitions)))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_hosts_read_what_the_order_says(case):
    order, hosts = case
    keepers = hosts_at(order, hosts)
    for step, parts in enumerate(run(keepers, order, 0, order.steps(3))):
        read = np.concatenate([part["y"] for part in parts])
        assert np.array_equal(read, order.ids(step))
        x = np.concatenate([part["x"] for part in parts])
        assert np.array_equal(x[:, 0], 3 * read)


@settings(max_examples=60, deadline=None)
@given(cases(), st.data())
def test_a_host_holds_what_it_would_hold_from_the_start(case, data):
    """After any steps, a store is what one that begins there is filled with."""
    order, hosts = case
    last = data.draw(st.integers(0, order.steps(3)))
    keepers = hosts_at(order, hosts)
    run(keepers, order, 0, last)
    for old, new in zip(keepers, hosts_at(order, hosts, last), strict=True):
        assert np.array_equal(old.store.ids(), new.store.ids())


def test_what_comes_and_leaves_in_one_step_does_not_stay():
    """Steps of two rounds, epochs of three: everything moves, some of it at once."""
    order = order_of(18, 6, 3, 12)
    for last in range(1, 20):
        keepers = hosts_at(order, 2)
        run(keepers, order, 0, last)
        for old, new in zip(keepers, hosts_at(order, 2, last), strict=True):
            assert np.array_equal(old.store.ids(), new.store.ids())


@settings(max_examples=40, deadline=None)
@given(cases())
def test_a_store_holds_its_share_and_two_steps_at_most(case):
    order, hosts = case
    keepers = hosts_at(order, hosts)
    run(keepers, order, 0, order.steps(3))
    share = max(
        sum(order.shuffle.size(w) for w in keeper.partitions) for keeper in keepers
    )
    assert max(k.store.peak_count for k in keepers) <= share + 2 * order.batch // hosts


def test_little_is_read_of_the_origin():
    order = order_of(800, 8, 10, 16)  # a tenth is exchanged
    keepers = hosts_at(order, 4)
    run(keepers, order, 0, order.steps(4))
    for keeper in keepers:
        assert keeper.counts.initial_reads == 200
        # Of 7 partitions that a sample may go to, one is the host's own.
        assert keeper.counts.received == pytest.approx(4 * 20 * 6 / 7, rel=0.1)
        assert keeper.counts.store_misses == 0


def test_rows_at_the_end_of_an_epoch_are_read_of_the_origin():
    order = order_of(83, 8, 2, 16)
    keepers = hosts_at(order, 4)
    run(keepers, order, 0, order.steps(3))
    strays = sum(k.counts.store_misses for k in keepers)
    assert 0 < strays <= 3 * 2 * 8


def test_a_store_on_disk_is_there_again(tmp_path):
    order = order_of(80, 8, 2, 16)
    run(hosts_at(order, 2, folder=tmp_path), order, 0, 7)
    again = hosts_at(order, 2, step=7, folder=tmp_path)
    assert [k.counts.initial_reads for k in again] == [0, 0]
    read = run(again, order, 7, 8)[0]
    assert np.array_equal(np.concatenate([p["y"] for p in read]), order.ids(7))


def test_another_number_of_hosts_fills_its_stores_anew(tmp_path):
    order = order_of(80, 8, 2, 16)
    run(hosts_at(order, 4, folder=tmp_path), order, 0, 7)
    fewer = hosts_at(order, 2, step=7, folder=tmp_path)
    assert [k.counts.initial_reads for k in fewer] == [40, 40]
    read = run(fewer, order, 7, 8)[0]
    assert np.array_equal(np.concatenate([p["y"] for p in read]), order.ids(7))


def test_a_damaged_sample_is_read_of_the_origin(tmp_path):
    order = order_of(80, 8, 2, 16)
    (keeper,) = hosts_at(order, 1, folder=tmp_path)
    path = tmp_path / "0" / "x.bin"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    read = np.concatenate([part["x"] for (part,) in run([keeper], order, 0, 5)])
    ids = np.concatenate([order.ids(step) for step in range(5)])
    assert np.array_equal(read[:, 0], 3 * ids)
    assert (keeper.store.corrupt_count, keeper.counts.store_misses) == (1, 1)


def test_a_full_store_says_so():
    store = ArrayStore({"x": np.zeros((1, 2))}, 2)
    store.put(np.arange(2), {"x": np.ones((2, 2))})
    with pytest.raises(FatalError, match="store is full"):
        store.put(np.array([5]), {"x": np.ones((1, 2))})
    store.drop([0])
    store.put(np.array([5]), {"x": np.ones((1, 2))})
    assert store.ids().tolist() == [1, 5]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_key_of_a_sample_may_have_the_name_of_the_index(tmp_path, on_disk):
    example = {"notes": np.zeros((1, 3), np.float32)}
    store = ArrayStore(example, 4, tmp_path if on_disk else None)
    store.put(np.array([7]), {"notes": np.full((1, 3), 5, np.float32)})
    found, good = store.get(np.array([7]))
    assert good.all()
    assert found["notes"].tolist() == [[5, 5, 5]]


def test_hosts_that_do_not_divide_the_partitions_are_refused():
    order = order_of(80, 8, 2, 16)
    with pytest.raises(BadInput, match="do not divide over the hosts") as caught:
        hosts_at(order, 3)
    assert caught.value.remedy[0] == "1, 2, 4, 8 hosts"


def test_samples_that_vary_are_not_kept():
    class Varying(ArraySource):
        def vary(self, ids, epochs, seed):
            return self.get(ids)

    origin = Varying({"x": np.zeros((80, 2))})
    order = order_of(80, 8, 2, 16)
    store = ArrayStore(origin.get(np.arange(1)), 80)
    with pytest.raises(BadInput, match="cannot be kept"):
        LocalShuffleSource(
            dataset=origin, order=order, host=0, num_hosts=1, store=store
        )
