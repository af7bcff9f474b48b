"""An evaluation that is asked to end leaves no score, and takes no more batches."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdist.train.evaluate import Evaluator

SUMS = {"loss": 2.0, "correct": 1.0, "answers": 2.0, "samples": 2.0}


@pytest.mark.parametrize(("at", "taken"), [(1, 1), (3, 3), (9, 5)])
def test_it_ends_at_the_batch_at_which_it_is_asked_to(at, taken):
    seen, asked = [], []

    def score(batch):
        seen.append(batch)
        return {key: np.float32(value) for key, value in SUMS.items()}

    def ends():
        asked.append(None)
        return len(asked) >= at

    evaluator = Evaluator(
        layout=None,
        batch_shapes={},
        batches=lambda: contextlib.nullcontext(range(5)),
        should_stop=ends,
        _compiled_step=score,
    )
    found = evaluator(SimpleNamespace(evaluated=()))
    assert len(seen) == taken
    assert bool(found) == (at > 5)
