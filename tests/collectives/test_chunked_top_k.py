"""Chunked top-k: what it takes of a chunk, how it packs it, and what it leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.chunked_top_k import ChunkedTopK
from jaxdist.collectives.primitives import all_reduce
from jaxdist.core.errors import BadInput

SHAPES = [(128, 192), (3, 3, 7, 130), (65, 128), (5, 2), (1, 1)]


def summed(method, arrays):
    """Sum arrays [P, ...] over devices; totals and what each device sent."""
    devices = len(arrays[0])
    few = jax.devices()[:devices]
    mesh = jax.make_mesh((devices,), ("replica",), (AxisType.Auto,), devices=few)

    def run(*rows):
        found = all_reduce([x[0] for x in rows], "replica", method)
        return jax.tree.map(lambda x: x[None], (found.total, found.contributions))

    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=P("replica"), out_specs=P("replica"), check_vma=False
    )
    return jax.tree.map(np.asarray, jax.jit(mapped)(*arrays))


def drawn(shapes, devices=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((devices, *s)).astype(np.float32) for s in shapes]


def test_each_tile_of_a_matrix_sends_its_largest_elements():
    (x,) = drawn([(128, 192)])
    _, (sent,) = summed(ChunkedTopK(quantize=False), [x])
    for tile, told in (
        (y[d, i : i + 64, j : j + 64] for y in (x, sent))
        for d in range(3)
        for i in range(0, 128, 64)
        for j in range(0, 192, 64)
    ):
        least = np.sort(np.abs(tile), axis=None)[-64]
        assert (told == np.where(np.abs(tile) >= least, tile, 0)).all()


@pytest.mark.parametrize("method", [ChunkedTopK(), ChunkedTopK(density=1.0)])
def test_two_bits_keep_signs_and_the_mean_magnitude(method):
    arrays = drawn(SHAPES)
    totals, sent = summed(method, arrays)
    for x, total, told in zip(arrays, totals, sent, strict=True):
        assert (total == total[0]).all()
        assert np.abs(told.sum(0) - total[0]).max() <= 1e-5
        for mine, message in zip(x, told, strict=True):
            took = message != 0
            assert len(np.unique(np.abs(message[took]))) <= 2
            assert (np.sign(message[took]) == np.sign(mine[took])).all()
            got, want = np.abs(message).sum(), np.abs(mine[took]).sum()
            # Where all are sent, so are the zeros that fill the last chunk.
            assert abs(got - want) <= (1e-5 if method.density < 1 else 1e-3) * want
            # What is kept and what is sent are what was due.
            assert np.abs(message + (mine - message) - mine).max() <= 1e-6
            assert (mine - message == mine)[~took].all()


def test_with_all_elements_sent_whole_it_is_the_sum():
    arrays = drawn(SHAPES)
    totals, sent = summed(ChunkedTopK(density=1.0, quantize=False), arrays)
    for x, total, told in zip(arrays, totals, sent, strict=True):
        assert (told == x).all()
        assert np.abs(total - x.sum(0)).max() <= 1e-6


def test_zeros_are_sent_as_zeros():
    (total,), _ = summed(ChunkedTopK(), [np.zeros((2, 70, 70), np.float32)])
    assert (total == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("quantize", [True, False])
def test_what_is_not_finite_is_nan_on_all_devices(bad, quantize):
    (x,) = drawn([(100, 90)])
    x[1, 5, 5] = bad
    (total,), _ = summed(ChunkedTopK(quantize=quantize), [x])
    assert np.isnan(total).all()


def test_bytes_by_the_paper():
    # 64 of 4,096 elements, each 12 bits of index and 2 of value; two levels a matrix.
    matrix = (4096, 4096)
    assert ChunkedTopK().message_bytes(matrix, 4) == 4096 * 64 * 14 // 8 + 8
    assert ChunkedTopK(density=1 / 128).message_bytes(matrix, 4) == 4096 * 56 + 8
    (moved,) = ChunkedTopK().payloads([matrix, (64, 64)], np.float32, {"replica": 4})
    assert moved.payload_bytes == 4 * (4096 * 112 + 8 + 112 + 8)
    # All elements need no indices.
    assert ChunkedTopK(density=1.0).message_bytes(matrix, 4) == 4096**2 // 4 + 8


def test_sending_nothing_is_refused():
    with pytest.raises(BadInput, match="density"):
        ChunkedTopK(density=0.0)


def test_a_sum_of_one_dtype_is_of_it():
    x = jnp.ones((2, 8, 8), jnp.bfloat16)
    (total,), _ = summed(ChunkedTopK(density=1.0), [x])
    assert total.dtype == jnp.bfloat16
    assert (total == 2).all()
