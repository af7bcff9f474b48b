"""An exchange brings every message to its device, in the bytes that it says."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.all_to_all import SWAP_PIECE_BYTES, all_to_all
from jaxdist.collectives.compress.codec import BlockQuantizationCodec
from jaxdist.collectives.compress.reduce_scatter_allgather import TwoPhaseAllReduce
from jaxdist.collectives.hlo_collectives import read_collectives
from jaxdist.collectives.primitives import psum


def mesh_of(devices):
    few = jax.devices()[:devices]
    return jax.make_mesh(
        (devices,), ("data",), devices=few, axis_types=(AxisType.Auto,)
    )


def on(mesh, run):
    return jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=P("data"),
            out_specs=P("data"),
            check_vma=False,
        )
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize(
    "size", [12, SWAP_PIECE_BYTES, SWAP_PIECE_BYTES + 4, 2 * SWAP_PIECE_BYTES]
)
def test_every_device_gets_the_messages_to_it_its_own_first(devices, size, dtype):
    words = size // np.dtype(dtype).itemsize
    rng = np.random.default_rng(size)
    sent = rng.integers(0, 255, (devices, devices, words)).astype(dtype)
    run = on(mesh_of(devices), lambda rows: all_to_all(rows[0], ("data",))[None])
    got = np.asarray(run(jnp.asarray(sent)))
    for rank in range(devices):
        wanted = sorted(sent[:, rank].tolist())
        assert sorted(got[rank].tolist()) == wanted
        if size > SWAP_PIECE_BYTES:
            assert (got[rank][0] == sent[rank, rank]).all()


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_long_messages_move_the_bytes_of_the_formula_one_to_each_link(devices):
    mesh, way = (
        mesh_of(devices),
        TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int8")),
    )
    numbers = devices * (SWAP_PIECE_BYTES + 1000)
    text = (
        on(mesh, lambda row: psum(row[0], "data", way)[None])
        .lower(jax.ShapeDtypeStruct((devices, numbers), jnp.float32))
        .compile()
        .as_text()
    )
    found, said = Counter(), Counter()
    for move in read_collectives(text, dict(mesh.shape)):
        found[move.kind] += move.payload
    for payload in way.payloads([(numbers,)], jnp.dtype("float32"), dict(mesh.shape)):
        said[payload.kind] += payload.payload_bytes
    assert found == said
    assert set(found) == {"collective-permute", "all-gather"}


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_a_sum_of_long_messages_is_near_and_the_same_on_every_device(devices):
    way = TwoPhaseAllReduce(codec=BlockQuantizationCodec(dtype="int8"))
    numbers = devices * (SWAP_PIECE_BYTES + 1000)
    x = np.random.default_rng(0).standard_normal((devices, numbers), np.float32)
    run = on(mesh_of(devices), lambda row: psum(row[0], "data", way)[None])
    total = np.asarray(run(jnp.asarray(x)))
    assert (total == total[0]).all()
    # Each packing rounds to half a code: those of all devices, and that of the sum.
    near = (np.abs(x).max() * devices + np.abs(x.sum(0)).max()) * 1.01 / 254
    assert np.abs(total[0] - x.sum(0)).max() <= near
