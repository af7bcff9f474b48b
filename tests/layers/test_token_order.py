"""Tokens lie zig-zag on devices: each has a chunk from both ends of a sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.layers.token_order import (
    by_device,
    gather_whole_tokens,
    global_position,
    in_order,
    local_tokens,
    token_positions,
)

TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


@pytest.fixture(scope="module")
def on_devices():
    mesh = Mesh(np.array(jax.devices()[:3]), ("context",))

    def run(local, x):
        spec = P(None, "context")
        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        return np.asarray(jax.jit(mapped)(x))

    return run


def test_a_device_has_a_chunk_from_both_ends(on_devices):
    found = on_devices(lambda x: local_tokens(gather_whole_tokens(x), 1), TOKENS)
    order = [0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]
    np.testing.assert_array_equal(found, TOKENS[:, order])


def test_positions_are_those_of_the_tokens(on_devices):
    def local(x):
        dealt = local_tokens(gather_whole_tokens(x), 1)
        places = token_positions(x.shape[1])
        assert places.dtype == jnp.int32
        # Of one of them by itself, as of a slice.
        last = global_position(jnp.int32([3]), 4)
        return jnp.concatenate([dealt[:1] - places, last[None] - places[None, 3:]], 1)

    assert not on_devices(local, TOKENS).any()


def test_tokens_of_all_devices_are_put_in_order_and_back(on_devices):
    def local(x):
        whole = gather_whole_tokens(local_tokens(gather_whole_tokens(x), 1))
        ordered = in_order(whole, 1)
        return jnp.concatenate([ordered, by_device(ordered, 1) - whole], 1)

    found = on_devices(local, TOKENS).reshape(2, 3, 24)
    for device in range(3):
        np.testing.assert_array_equal(found[:, device, :12], TOKENS)
        assert not found[:, device, 12:].any()


def test_outside_of_a_split_nothing_is_moved():
    assert token_positions(4).tolist() == [0, 1, 2, 3]
    assert local_tokens(TOKENS, 1) is TOKENS
