"""What cannot be read ends the batches, and is raised when the run asks for it."""

import jax
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.training.readable_samples import ReadableEvaluator, ReadableSamples


class Evaluator:
    ready = True

    def prepare(self):
        self.ready = True

    def __call__(self, state):
        raise BadInput("a held-out sample is damaged")


def batches():
    yield from range(3)
    raise BadInput("sample 3 is damaged")


def test_batches_end_before_one_that_cannot_be_read():
    samples = ReadableSamples()
    assert list(samples.batches(batches())) == [0, 1, 2]
    with pytest.raises(BadInput, match="sample 3"):
        samples.raise_error()


def test_batches_end_after_an_evaluation_that_cannot_be_read():
    samples = ReadableSamples()
    seen = samples.batches(batches())
    assert next(seen) == 0
    evaluate = ReadableEvaluator(Evaluator(), samples)
    evaluate.prepare()
    assert evaluate.ready
    assert evaluate(None) == {}
    assert list(seen) == []
    with pytest.raises(BadInput, match="held-out"):
        samples.raise_error()


def test_of_several_processes_each_raises_what_it_read(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(BadInput, match="sample 3"):
        list(ReadableSamples().batches(batches()))


def test_nothing_is_raised_where_all_was_read():
    samples = ReadableSamples()
    assert list(samples.batches(iter("ab"))) == ["a", "b"]
    samples.raise_error()
