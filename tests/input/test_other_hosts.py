"""A run that goes on with other hosts, in the middle of an epoch, loses no sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.input.augmentation import Augmentation
from jaxdist.input.batch_assembly import TrainBatchAssembler
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import PartialShuffle
from jaxdist.input.local_shuffle.source import make_local_shuffle_source
from jaxdist.input.order import GlobalShuffleOrder
from jaxdist.input.sources import ArraySource

HOSTS = 16, 4, 8


@st.composite
def attempts(draw):
    """An order for 16 hosts, and the steps at which the number of hosts changes."""
    partitions = 16 * draw(st.integers(1, 2))
    slots = draw(st.integers(2, 12))
    samples = partitions * slots + draw(st.integers(0, partitions - 1))
    exchanged, seed = draw(st.integers(0, slots)), draw(st.integers(0, 2**40))
    how = dict(
        samples=samples, partitions=partitions, exchange_count=exchanged, seed=seed
    )
    batch = partitions * draw(st.integers(1, 3))
    cuts = draw(st.lists(st.integers(1, 6), min_size=3, max_size=3))
    return how, batch, np.cumsum([0, *cuts]).tolist()


def read(recipes, batch, step):
    rows = np.split(np.arange(batch), len(recipes))
    parts = [recipe(step, own) for recipe, own in zip(recipes, rows, strict=True)]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def recipe_of(source, order):
    return TrainBatchAssembler(
        source=source, order=order, augmentation=Augmentation(shift=1)
    )


def source_of(samples):
    image = np.random.default_rng(0).random((samples, 4, 4, 1)).astype(np.float32)
    return ArraySource({"image": image, "label": np.arange(samples)})


@settings(max_examples=15)
@given(attempts())
def test_batches_are_those_of_one_host_16_then_4_then_8(case):
    """Every attempt begins with nothing but its step: fresh orders, fresh stores."""
    how, batch, cuts = case
    source = source_of(how["samples"])
    order = PartialShuffleOrder(shuffle=PartialShuffle(**how), batch=batch)
    alone = recipe_of(source, order)
    for hosts, first, last in zip(HOSTS, cuts, cuts[1:], strict=False):
        kept = []
        for host in range(hosts):
            fresh = PartialShuffleOrder(shuffle=PartialShuffle(**how), batch=batch)
            kept.append(
                make_local_shuffle_source(
                    source, fresh, host=host, num_hosts=hosts, folder=None
                )
            )
            kept[-1].fill_store(first)
        recipes = [recipe_of(own, own.order) for own in kept]
        for step in range(first, last):
            found, want = read(recipes, batch, step), alone(step, np.arange(batch))
            assert all(np.array_equal(found[key], want[key]) for key in want)
            for own in kept:
                own.exchange(step)


@settings(max_examples=40)
@given(st.integers(16, 300), st.integers(1, 3), st.integers(0, 2**40))
def test_the_same_of_samples_that_are_drawn_from_all(samples, times, seed):
    batch = 16 * times
    alone = recipe_of(
        source_of(samples),
        GlobalShuffleOrder(num_samples=samples, batch=batch, seed=seed),
    )
    for hosts, steps in zip(HOSTS, (range(3), range(3, 5), range(5, 9)), strict=True):
        fresh = GlobalShuffleOrder(num_samples=samples, batch=batch, seed=seed)
        recipes = [recipe_of(source_of(samples), fresh) for _ in range(hosts)]
        for step in steps:
            found, want = read(recipes, batch, step), alone(step, np.arange(batch))
            assert all(np.array_equal(found[key], want[key]) for key in want)


SHUFFLE = PartialShuffle(samples=1437, partitions=64, exchange_count=2, seed=0)


@pytest.mark.parametrize(
    ("order", "step", "first"),
    [
        (PartialShuffleOrder(shuffle=SHUFFLE, batch=64), 0, [18, 27, 64, 73, 106, 125]),
        (PartialShuffleOrder(shuffle=SHUFFLE, batch=64), 22, [2, 213, 42, 23, 54, 68]),
        (
            PartialShuffleOrder(shuffle=SHUFFLE, batch=64),
            700,
            [17, 701, 160, 1265, 182, 646],
        ),
        (
            GlobalShuffleOrder(num_samples=1437, batch=64),
            0,
            [346, 876, 931, 382, 824, 716],
        ),
        (
            GlobalShuffleOrder(num_samples=1437, batch=64),
            22,
            [1410, 583, 284, 503, 739, 1380],
        ),
        (
            GlobalShuffleOrder(num_samples=1437, batch=64),
            700,
            [1077, 648, 997, 622, 28, 481],
        ),
    ],
)
def test_the_batches_of_a_step_never_change(order, step, first):
    # A change here changes the order of every run there is, and breaks its resume.
    assert order.ids(step)[:6].tolist() == first
