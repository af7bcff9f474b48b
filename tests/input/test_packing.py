"""Packing: every token in one window once, windows as full as best fit makes them."""

import numpy as np
import pytest

from jaxdist.input.packing import pack_documents


def best_fit(lengths, size):
    """Count windows as anyone would write it, a piece at a time."""
    rooms = []
    for rest in sorted((n % size for n in lengths if n % size), reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= rest]
        if fitting:
            rooms[min(fitting, key=lambda i: rooms[i])] -= rest
        else:
            rooms.append(size - rest)
    return len(rooms) + sum(n // size for n in lengths)


@pytest.mark.parametrize("seed", range(25))
def test_every_place_is_in_one_window(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, rng.integers(2, 60), rng.integers(1, 80))
    size = int(rng.integers(2, 33))
    packed = pack_documents(lengths, size)
    places = [
        (document, start + i)
        for document, start, count in zip(
            packed.documents.tolist(),
            packed.starts.tolist(),
            packed.lengths.tolist(),
            strict=True,
        )
        for i in range(count)
    ]
    assert sorted(places) == [(d, i) for d, n in enumerate(lengths) for i in range(n)]
    filled = np.add.reduceat(packed.lengths, packed.bounds[:-1])
    assert filled.max() <= size
    assert len(packed) == best_fit(lengths.tolist(), size)


def test_many_documents_leave_little_padding():
    lengths = np.random.default_rng(0).lognormal(5, 1.2, 20_000).astype(np.int64) + 1
    assert pack_documents(lengths, 512).padding < 0.001
