"""Batch norm's statistics: two passes, over all who share them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.layers import BatchNorm
from jaxdist.layers.halo import Split


def make(statistics="global"):
    norm = BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))
    norm.statistics = statistics
    return norm


def run(norm, x, mesh):
    graph, params, stats = nnx.split(norm, nnx.Param, nnx.BatchStat)

    def local(x):
        layer = nnx.merge(graph, params, stats, copy=True)
        y = layer(x)
        return y, layer.mean[...], layer.var[...]

    spec = P("data", "spatial_h")
    step = jax.shard_map(
        local, mesh=mesh, in_specs=spec, out_specs=(spec, P(), P()), check_vma=False
    )
    return jax.jit(step)(x)


@pytest.fixture
def mesh():
    return jax.make_mesh(
        (2, 2),
        ("data", "spatial_h"),
        axis_types=(AxisType.Auto,) * 2,
        devices=jax.devices()[:4],
    )


@pytest.fixture
def x():
    # A mean of a thousand deviations: a one-pass variance would lose six digits.
    rng = np.random.default_rng(0)
    return jnp.asarray(1000 + rng.normal(size=(4, 4, 4, 3)))


def test_global_statistics_are_of_the_whole_batch(mesh, x):
    y, mean, var = run(make(), x, mesh)
    want = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(y, want, atol=1e-9)
    np.testing.assert_allclose(mean, 0.1 * x.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(var, 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-6)


def test_replica_statistics_still_join_the_blocks_of_a_sample(mesh, x):
    y, mean, _ = run(make("replica"), x, mesh)
    half = x[:2]
    want = (half - half.mean((0, 1, 2))) / np.sqrt(half.var((0, 1, 2)) + 1e-5)
    np.testing.assert_allclose(y[:2], want, atol=1e-9)
    np.testing.assert_allclose(mean, 0.1 * x.mean((0, 1, 2)), rtol=1e-6)


@pytest.mark.parametrize("statistics", ["global", "replica"])
def test_statistics_are_of_real_rows(mesh, x, statistics):
    """Three real rows in two blocks of two; what lies behind them counts for nothing."""
    padded, norm = x.at[:, 3].set(-7e4), make(statistics)
    norm.split = Split(rows=(3, 4))
    y, mean, var = run(norm, padded, mesh)
    real = x[:, :3]
    parts = [real] if statistics == "global" else [real[:2], real[2:]]
    want = [(p - p.mean((0, 1, 2))) / np.sqrt(p.var((0, 1, 2)) + 1e-5) for p in parts]
    np.testing.assert_allclose(y[:, :3], np.concatenate(want), atol=1e-9)
    np.testing.assert_allclose(mean, 0.1 * real.mean((0, 1, 2)), rtol=1e-6)
    spread = np.mean([p.var((0, 1, 2)) for p in parts], axis=0)
    np.testing.assert_allclose(var, 0.9 + 0.1 * spread, rtol=1e-6)


def test_evaluation_uses_the_running_statistics(x):
    norm = make()
    norm.eval()
    np.testing.assert_allclose(norm(x), x / np.sqrt(1 + 1e-5), rtol=1e-6)


def test_a_mask_is_refused(x):
    with pytest.raises(TypeError, match="no mask"):
        make()(x, mask=jnp.ones(x.shape, bool))
