"""A mixture has each source's part in every epoch, and leaves none of its samples out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.input import Partial, loader
from jaxdist.input.mixture import Mixture, largest_remainder_split
from jaxdist.input.sources import ArraySource


def numbered(name, samples):
    return ArraySource({"of": np.full(samples, name), "x": np.arange(samples)})


def epoch_of(mixture, epoch, seed=0):
    ids = np.arange(len(mixture))
    return mixture.vary(ids, np.full_like(ids, epoch), seed)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 10_000))
def test_parts_are_the_weights_to_a_sample(weights, samples):
    parts = largest_remainder_split(weights, samples)
    assert sum(parts) == samples
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - samples * weight / sum(weights)) < 1


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0.2, 5))
def test_every_sample_comes_once_a_pass(few, many, weight):
    mixture = Mixture(
        {"a": (numbered(0, few), weight), "b": (numbered(1, many), 1)}, 60
    )
    epochs = [epoch_of(mixture, epoch, seed=3) for epoch in range(5)]
    for number, (name, size) in enumerate({"a": few, "b": many}.items()):
        drawn = [e["x"][e["of"] == number] for e in epochs]
        assert all(len(x) == mixture.samples_per_source[name] for x in drawn)
        counts = np.bincount(np.concatenate(drawn), minlength=size)
        assert np.ptp(counts) <= 1


def test_a_sample_is_a_function_of_seed_epoch_and_id():
    mixture = Mixture({"a": (numbered(0, 7), 1), "b": (numbered(1, 50), 2)})
    ids, epochs = np.array([40, 3, 20]), np.array([2, 2, 5])
    whole = mixture.vary(ids, epochs, 9)
    for row in range(3):
        alone = mixture.vary(ids[[row]], epochs[[row]], 9)
        assert all(alone[k][0] == whole[k][row] for k in alone)
    other = mixture.vary(ids, epochs, 8)
    assert (other["x"] != whole["x"]).any()


def test_the_numbers_never_change():
    # A change here changes what every run on a mixture sees, and breaks its resume.
    one, other = ArraySource({"x": np.arange(7)}), ArraySource({"x": np.arange(50)})
    mixture = Mixture({"a": (one, 1), "b": (other, 2)}, 12)
    seen = mixture.vary(np.arange(12), np.full(12, 3), 9)["x"]
    assert seen.tolist() == [6, 5, 1, 4, 6, 27, 32, 12, 8, 48, 1, 24]


def test_sources_that_vary_do_so_in_their_own_passes():
    class Passes(ArraySource):
        def vary(self, ids, epochs, seed):
            return {"of": np.full_like(ids, seed), "x": epochs}

    source = Passes({"of": np.zeros(10), "x": np.zeros(10)})
    mixture = Mixture({"a": (source, 1)}, 25)
    assert np.bincount(epoch_of(mixture, 0)["x"]).tolist() == [10, 10, 5]
    assert np.bincount(epoch_of(mixture, 1)["x"]).tolist() == [0, 0, 5, 10, 10]
    assert set(epoch_of(mixture, 0, seed=6)["of"]) == {6}


def test_a_loop_reads_a_mixture():
    mixture = Mixture({"a": (numbered(0, 10), 1), "b": (numbered(1, 90), 3)}, 80)
    with loader(
        mixture, global_batch=16, shuffle=Partial(exchange_fraction=0.5)
    ) as batches:
        of = np.concatenate([np.asarray(next(batches)["of"]) for _ in range(5)])
    assert np.bincount(of).tolist() == [20, 60]


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ({}, "no mixture"),
        ({"a": (numbered(0, 3), 0)}, "no mixture"),
        ({"a": (numbered(0, 3), math.inf)}, "no mixture"),
        ({"a": (numbered(0, 3), math.nan)}, "no mixture"),
        ({"a": (numbered(0, 3), 1), "b": (numbered(1, 90), 900)}, "a has no sample"),
        (
            {"a": (numbered(0, 3), 1), "b": (ArraySource({"y": np.zeros(3)}), 1)},
            "a and b have other keys",
        ),
    ],
)
def test_what_is_no_mixture_is_refused(sources, says):
    with pytest.raises(BadInput, match=says):
        Mixture(sources)


@pytest.mark.parametrize("samples", [-5, 0])
def test_an_epoch_without_samples_is_refused(samples):
    with pytest.raises(BadInput, match="has no samples"):
        Mixture({"a": (numbered(0, 3), 1)}, samples)


def test_other_samples_or_other_parts_are_another_mixture():
    def named(few, weight):
        sources = {"a": (numbered(0, few), weight), "b": (numbered(1, 90), 3)}
        return Mixture(sources, 80).fingerprint

    assert named(10, 1) == named(10, 1)
    assert len({named(10, 1), named(11, 1), named(10, 2)}) == 3
