"""Counts in two words are exact beyond int32, over samples, devices and batches."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.train.count_words import count_true, count_words, words_total
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.segmentation import Segmentation

LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    "counts",
    [
        [0],
        [LARGEST] * 5,
        [65535] * 300,
        [[LARGEST, 1, 65536], [LARGEST, 0, 65535]],
    ],
)
def test_sums_of_samples(counts):
    words = count_words(jnp.asarray(counts, jnp.int32))
    assert words.dtype == jnp.int32
    np.testing.assert_array_equal(words_total(words), np.sum(counts, 0, np.int64))


def test_sums_of_devices():
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))

    def local(counts):
        return jax.lax.psum(count_words(counts), "data")

    counts = jnp.full((24, 2), LARGEST - 1, jnp.int32)
    sums = jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P())(counts)
    np.testing.assert_array_equal(words_total(sums), [24 * (LARGEST - 1)] * 2)


def test_answers_of_several_dims():
    found = np.random.default_rng(0).random((3, 4, 5)) < 0.5
    assert words_total(count_true(jnp.asarray(found))) == found.sum()


def test_an_evaluation_of_more_pixels_than_int32_counts():
    # Two batches of 3 samples, each of 1290^3 pixels, all right.
    pixels = 1290**3
    each = jnp.full((3, 3, 2), pixels, jnp.int32).at[..., 1].set(0)
    counts = count_words(each)
    sums = {
        "loss": np.float32(3),
        "samples": count_words(jnp.ones(3, jnp.int32)),
        "class_counts": counts,
        "correct": counts[:, 0].sum(-1),
        "answers": counts[:, 2].sum(-1),
    }
    evaluator = Evaluator(
        layout=SimpleNamespace(objective=Segmentation()),
        batch_shapes={},
        batches=lambda: contextlib.nullcontext(range(2)),
        _compiled_step=lambda batch: sums,
    )
    found = evaluator(SimpleNamespace(evaluated=()))
    assert (found["correct"], found["answers"]) == (6 * pixels, 6 * pixels)
    assert 6 * pixels > 2**33
    assert (found["samples"], found["loss"]) == (6, 1.0)
    assert (found["accuracy"], found["mean_iou"], found["iou_0"]) == (1, 1, 1)
