"""Batches are a function of the step, whoever makes them and whenever."""

import threading

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import SourceFailedError
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.batch_assembly import EvalBatchAssembler, TrainBatchAssembler
from jaxdist.input.device_feed import covered_rows, eval_feed, local_rows, train_feed
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.sources import ArraySource

N = 45
ORDER = GlobalShuffleOrder(num_samples=N, batch=16, seed=5)


def toy(n=N):
    images = np.random.default_rng(0).random((n, 8, 8, 1))
    return ArraySource({"image": images, "label": np.arange(n) % 10})


def taken(feed, steps):
    """Batches as NumPy, and the feed closed."""
    with feed:
        return [jax.tree.map(np.asarray, next(feed)) for _ in range(steps)]


def assert_same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def test_a_batch_is_what_the_order_says(shardings):
    source = toy()
    for step, batch in enumerate(taken(train_feed(source, ORDER, shardings), 4)):
        np.testing.assert_array_equal(batch["id"], ORDER.ids(step))
        samples = source.get(batch["id"])
        np.testing.assert_array_equal(batch["label"], samples["label"])
        np.testing.assert_array_equal(batch["image"], samples["image"].astype("f4"))


def test_types_shapes_and_places(shardings):
    with train_feed(
        toy(), ORDER, shardings, augmentation=Augmentation(shift=1)
    ) as feed:
        batch = next(feed)
    assert {k: (v.shape, v.dtype.name) for k, v in batch.items()} == {
        "image": ((16, 8, 8, 1), "float32"),
        "label": ((16,), "int32"),
        "id": ((16,), "int32"),
    }
    assert all(array.sharding == shardings[name] for name, array in batch.items())
    assert batch["image"].addressable_shards[0].data.shape == (4, 4, 8, 1)


@pytest.mark.parametrize("start", [1, 2, 3, 11])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_restart_at_any_step_goes_on_alike(shardings, start, threads):
    whole = taken(
        train_feed(toy(), ORDER, shardings, augmentation=Augmentation(shift=1)), 14
    )
    rest = train_feed(
        toy(),
        ORDER,
        shardings,
        augmentation=Augmentation(shift=1),
        start=start,
        threads=threads,
    )
    assert_same(whole[start:], taken(rest, 14 - start))


def test_batches_given_earlier_stay_as_they_were(shardings):
    with train_feed(
        toy(), ORDER, shardings, augmentation=Augmentation(shift=1)
    ) as feed:
        kept = [next(feed) for _ in range(6)]
    assert_same(
        [jax.tree.map(np.asarray, batch) for batch in kept],
        taken(
            train_feed(toy(), ORDER, shardings, augmentation=Augmentation(shift=1)), 6
        ),
    )


def test_a_closed_feed_leaves_no_thread(shardings):
    before = set(threading.enumerate())
    feed = train_feed(toy(), ORDER, shardings)
    next(feed)
    assert set(threading.enumerate()) - before
    feed.close()
    assert set(threading.enumerate()) <= before
    feed.close()


def test_a_closed_feed_says_so(shardings):
    feed = train_feed(toy(), ORDER, shardings)
    feed.close()
    feed.close()
    with pytest.raises(ValueError, match="this feed is closed"):
        next(feed)


def test_several_threads_end_too(shardings):
    before = set(threading.enumerate())
    taken(train_feed(toy(), ORDER, shardings, threads=3), 5)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_two_feeds_do_not_wait_for_each_other(shardings):
    with train_feed(toy(), ORDER, shardings) as train:
        first = np.asarray(next(train)["id"])
        with eval_feed(toy(), 16, shardings) as test:
            assert len(list(test)) == 3
        second = np.asarray(next(train)["id"])
    assert [*first, *second] == [*ORDER.ids(0), *ORDER.ids(1)]


def test_an_error_while_reading_reaches_the_loop(shardings):
    class Broken(ArraySource):
        def get(self, ids):
            # One sample is read when it is opened, and held against the rest.
            if len(ids) > 1:
                raise OSError("the disk is gone")
            return super().get(ids)

    before = set(threading.enumerate())
    source = Broken({"image": np.zeros((N, 8, 8, 1)), "label": np.zeros(N)})
    feed = train_feed(source, ORDER, shardings)
    with feed, pytest.raises(SourceFailedError, match="the disk is gone"):
        next(feed)
    assert set(threading.enumerate()) <= before


@given(n=st.integers(1, 60), batch=st.integers(1, 40))
def test_evaluation_counts_every_sample_once(n, batch):
    recipe = EvalBatchAssembler(source=toy(n), batch=batch)
    made = [recipe(step, np.arange(batch)) for step in range(recipe.steps)]
    ids = np.concatenate([b["id"] for b in made])
    weights = np.concatenate([b["weight"] for b in made])
    assert ids[weights == 1].tolist() == list(range(n))
    assert set(ids[weights == 0].tolist()) <= {-1}
    assert weights.sum() == n
    assert len(ids) == batch * recipe.steps < n + batch


def test_an_evaluation_feed_ends(shardings):
    with eval_feed(toy(), 16, shardings) as feed:
        batches = list(feed)
    assert [float(b["weight"].sum()) for b in batches] == [16, 16, 13]
    assert batches[2]["id"].tolist()[12:] == [44, -1, -1, -1]
    assert {k: v.dtype.name for k, v in batches[0].items()} == {
        "image": "float32",
        "label": "int32",
        "id": "int32",
        "weight": "float32",
    }


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
def test_hosts_read_their_rows_and_together_all(shardings, hosts):
    pieces = list(shardings["label"].devices_indices_map((16,)).values())
    each = 8 // hosts
    rows = [covered_rows(pieces[h * each : (h + 1) * each], 16) for h in range(hosts)]
    assert sorted(set(np.concatenate(rows).tolist())) == list(range(16))
    assert {len(held) for held in rows} == {16 // min(hosts, 4)}
    recipe = TrainBatchAssembler(
        source=toy(), order=ORDER, augmentation=Augmentation(shift=1)
    )
    whole = recipe(3, np.arange(16))
    for held in rows:
        assert_same([recipe(3, held)], [{k: v[held] for k, v in whole.items()}])


@pytest.mark.parametrize("rows", [8, 12, 16])
def test_a_larger_shape_has_zeros_behind_the_sample(shardings, rows):
    """At 16 rows the second device of each pair holds nothing of the sample."""
    shapes = {"image": jax.ShapeDtypeStruct((16, rows, 9, 1), "float32")}
    plain = taken(
        train_feed(toy(), ORDER, shardings, augmentation=Augmentation(shift=1)), 2
    )
    wide = taken(
        train_feed(
            toy(), ORDER, shardings, shapes=shapes, augmentation=Augmentation(shift=1)
        ),
        2,
    )
    for batch in wide:
        assert batch["image"].shape == (16, rows, 9, 1)
        assert not batch["image"][:, 8:].any()
        assert not batch["image"][:, :, 8:].any()
        batch["image"] = batch["image"][:, :8, :8]
    assert_same(wide, plain)


def test_one_host_holds_every_row_once(shardings):
    assert local_rows(shardings.values(), 16).tolist() == list(range(16))
