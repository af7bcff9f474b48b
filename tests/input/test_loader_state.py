"""A loop of one's own goes on from its state, over the samples that it began with."""

import json
from itertools import islice

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input import (
    ArraySource,
    Global,
    Local,
    Partial,
    loader,
    sampler,
)
from jaxdist.input.device_feed import eval_feed
from jaxdist.input.loader_state import make_loader_state
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.input.order import GlobalShuffleOrder

SOURCE = ArraySource({"x": np.arange(50.0)})
HOW = dict(global_batch=8, shuffle=Partial(exchange_fraction=0.3, partitions=4), seed=3)
ORDERS = [
    Global(),
    Local(partitions=4),
    Partial(exchange_fraction=0.3, partitions=4),
]


def ids(batches, steps):
    return [np.asarray(batch["id"]) for batch in islice(batches, steps)]


def saved(steps=5, source=SOURCE, **how):
    with loader(source, **{**HOW, **how}) as batches:
        ids(batches, steps)
        return json.loads(json.dumps(batches.state()))


@pytest.mark.parametrize("shuffle", ORDERS)
def test_a_loop_goes_on_from_its_state(shuffle):
    how = HOW | {"shuffle": shuffle}
    with loader(SOURCE, **how) as batches:
        whole = ids(batches, 20)
    with loader(SOURCE, **how, start=saved(13, shuffle=shuffle)) as batches:
        assert np.array_equal(whole[13:18], ids(batches, 5))
        again = batches.state()
    with loader(SOURCE, **how, start=again) as batches:
        assert np.array_equal(whole[18:], ids(batches, 2))


def test_a_state_counts_batches_that_were_given_not_those_made_ahead():
    assert saved(0)["step"] == 0
    assert saved(5, threads=4)["step"] == 5
    assert saved(5, start=100)["step"] == 105


LARGE = PartialShuffle(
    samples=2**31 - 1, partitions=4096, exchange_count=2**19 - 1, seed=-(2**63)
)
LARGEST = [
    GlobalShuffleOrder(num_samples=2**31 - 1, batch=2**31 - 1, seed=2**64 - 1),
    PartialShuffleOrder(shuffle=LARGE, batch=4096 * 2**18),
]


@pytest.mark.parametrize("order", LARGEST)
def test_a_state_fits_in_512_bytes(order):
    text = json.dumps(make_loader_state(order, "any length" * 1000, 2**62), indent=2)
    assert len(text.encode()) <= 512


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (dict(seed=4), "seed: was 3, is 4"),
        (dict(global_batch=16), "batch: was 8, is 16"),
        (
            dict(shuffle=Partial(exchange_fraction=0.3, partitions=8)),
            "partitions: was 4, is 8",
        ),
        (
            dict(shuffle=Partial(exchange_fraction=0.5, partitions=4)),
            "exchanged: was 4, is 6",
        ),
        (dict(shuffle=Global()), "order: was partial, is global"),
        (dict(source=ArraySource({"x": np.arange(60.0)})), "samples: was 50, is 60"),
    ],
)
def test_another_order_is_refused_and_says_what_changed(other, says):
    how = {"source": SOURCE, **HOW, **other}
    with pytest.raises(BadInput, match="other samples or in another order") as caught:
        loader(start=saved(), **how)
    assert says in caught.value.values


def test_one_sample_that_changed_is_refused():
    changed = np.arange(50.0)
    changed[17] += 1
    with pytest.raises(BadInput) as caught:
        loader(ArraySource({"x": changed}), **HOW, start=saved())
    assert caught.value.values.startswith("data: was ")


@pytest.mark.parametrize("change", [{"step": -1}, {"step": "5"}, {"host": 3}])
def test_what_is_no_state_is_refused(change):
    with pytest.raises(BadInput, match="no state of a loader"):
        loader(SOURCE, **HOW, start=saved() | change)


def test_fewer_steps_than_none_are_refused():
    with pytest.raises(BadInput, match="fewer than no steps"):
        loader(SOURCE, **HOW, start=-1)
    with pytest.raises(BadInput, match="fewer than no steps"):
        sampler(50, **HOW, start=-1)


def test_a_state_of_another_version_is_refused():
    with pytest.raises(BadInput) as caught:
        loader(SOURCE, **HOW, start=saved() | {"version": 0})
    assert caught.value.values == "version: was 0, is 1"


class Nameless:
    def __len__(self):
        return 50

    def get(self, ids):
        return {"x": ids}


def test_a_source_without_a_fingerprint_is_told_so_when_its_state_is_asked_for():
    with loader(Nameless(), **HOW) as batches:
        next(batches)
        with pytest.raises(BadInput, match="no fingerprint") as caught:
            batches.state()
    assert "Nameless" in caught.value.values


def test_an_evaluation_has_no_state():
    with loader(SOURCE, **HOW) as batches:
        rows = next(batches)["id"].sharding
    shardings = dict.fromkeys(("x", "id", "weight"), rows)
    feed = eval_feed(SOURCE, 8, shardings, dtypes={"x": "float32"})
    with feed, pytest.raises(ValueError, match="no state"):
        feed.state()


def test_ranks_of_a_sampler_go_on_from_one_state():
    how = HOW | {"data": "scans, version 1"}
    one = sampler(50, **how)
    state = json.loads(json.dumps(one.state(9)))
    both = [sampler(50, **how, rank=r, world=2, start=state) for r in (0, 1)]
    given = [i for own in both for i in next(iter(own))]
    assert given == one.ids(9)
    with pytest.raises(BadInput) as caught:
        sampler(50, **HOW, data="scans, version 2", start=state)
    assert caught.value.values.startswith("data: was ")
    assert one.advance(3).state(3) == one.state(3)
