"""A run reads until something cannot be read, and fails for it once it is saved."""

from types import SimpleNamespace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.training import readable_samples
from jaxdist.launch.training.readable_samples import ReadableEvaluator, ReadableSamples

DAMAGE = BadInput("it is damaged", rule="", values="", remedy="")


def damaged(count):
    yield from ({"id": n} for n in range(count))
    raise DAMAGE


def test_batches_end_at_the_damage_and_the_error_is_raised_afterwards():
    samples = ReadableSamples()
    assert [batch["id"] for batch in samples.batches(damaged(3))] == [0, 1, 2]
    with pytest.raises(BadInput, match="damaged"):
        samples.raise_error()


def test_what_was_read_whole_has_no_error():
    samples = ReadableSamples()
    assert list(samples.batches(iter([{}, {}]))) == [{}, {}]
    samples.raise_error()


def test_a_held_out_sample_interrupts_the_evaluation_and_the_batches_behind_it():
    def evaluate(state):
        raise DAMAGE

    samples = ReadableSamples()
    batches = samples.batches(iter([{"id": 0}, {"id": 1}]))
    assert next(batches) == {"id": 0}
    assert ReadableEvaluator(evaluate, samples)(SimpleNamespace()) == {}
    assert list(batches) == []
    with pytest.raises(BadInput, match="damaged"):
        samples.raise_error()


def test_one_of_several_processes_fails_at_once(monkeypatch):
    monkeypatch.setattr(readable_samples.jax, "process_count", lambda: 2)
    with pytest.raises(BadInput, match="damaged"):
        list(ReadableSamples().batches(damaged(1)))
