"""Dropout belongs to the sample and the position, however arrays are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.layers import Dropout, bind

KEY = jax.random.key(7)


def drop(x, ids, rate=0.4):
    layer = Dropout(rate)
    bind(layer, KEY, ids)
    return layer(x)


@pytest.fixture
def batch():
    return jnp.ones((8, 4, 4, 5), jnp.float32), jnp.arange(100, 108, dtype=jnp.int32)


def test_a_split_changes_nothing(batch):
    mesh = jax.make_mesh(
        (2, 2, 2),
        ("data", "spatial_h", "spatial_w"),
        axis_types=(AxisType.Auto,) * 3,
        devices=jax.devices()[:8],
    )
    spec = P("data", "spatial_h", "spatial_w")
    split = jax.shard_map(
        drop, mesh=mesh, in_specs=(spec, P("data")), out_specs=spec, check_vma=False
    )
    np.testing.assert_array_equal(jax.jit(split)(*batch), drop(*batch))


def test_order_in_the_batch_changes_nothing(batch):
    x, ids = batch
    turned = jnp.array([3, 1, 7, 0, 2, 5, 6, 4])
    np.testing.assert_array_equal(drop(x, ids)[turned], drop(x[turned], ids[turned]))


def test_samples_positions_and_channels_differ(batch):
    y = np.asarray(drop(*batch)) > 0
    assert len({row.tobytes() for row in y}) == len(y)
    assert len({y[0, h, w].tobytes() for h in range(4) for w in range(4)}) > 8


def test_the_rate_and_the_mean():
    x = jnp.ones((64, 8, 8, 8), jnp.float32)
    y = np.asarray(drop(x, jnp.arange(64, dtype=jnp.int32)))
    # 32,768 draws: four standard deviations of the mean are 0.018.
    assert abs(y.mean() - 1) < 0.018
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.6)}


def test_without_noise_it_says_so(batch):
    with pytest.raises(RuntimeError, match=r"bind\(model, key, ids\)"):
        Dropout(0.5)(batch[0])


def test_evaluation_keeps_everything(batch):
    layer = Dropout(0.5)
    layer.eval()
    np.testing.assert_array_equal(layer(batch[0]), batch[0])
