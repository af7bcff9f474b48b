"""Law 1 for images whose rows do not divide: padded blocks change nothing.

The padding of the images holds random numbers, which no feed would leave there.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.layers import (
    AvgPool,
    Conv,
    Dropout,
    GlobalMean,
    GridMean,
    Linear,
    LocalResponseNorm,
    MaxPool,
)
from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import make_batch_norm
from jaxdist.models.resnet import ResNet8

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

CONFIG = ModelConfig(dropout=0.3)


class Plane(nnx.Module):
    """Every kind of layer, two branches that read the same rows; stride 2."""

    def __init__(self, config, *, dtype=None, rngs):
        preset = resolve_preset(config, ResNet8.presets)
        how = dict(dtype=dtype, rngs=rngs)
        self.stem = Conv(2, 4, (5, 3), padding=[(3, 1), (1, 1)], use_bias=False, **how)
        self.norm = make_batch_norm(4, preset, dtype, rngs)
        self.conv = Conv(4, 4, (3, 3), 2, feature_group_count=2, **how)
        self.pool = MaxPool(3, 2, padding=1)
        self.response = LocalResponseNorm(alpha=0.1)
        self.dropout = Dropout(preset.dropout)
        self.blur = AvgPool(3, 1, padding=1)
        self.last = Conv(8, 8, (2, 2), padding="VALID", **how)
        self.grid = GridMean((2, 3))
        self.mean = GlobalMean()
        self.dense = Linear(8, 10, **how)

    def __call__(self, x):
        x = jnp.tanh(self.norm(self.stem(x)))
        x = jnp.concatenate([self.conv(x), self.pool(x)], -1)
        x = self.dropout(self.response(x))
        x = jax.nn.relu(self.last(x + self.blur(x)))
        return self.dense(self.mean(x) + self.grid(x).mean((1, 2)))


class Stem(nnx.Module):
    """A window of eleven rows and stride 4, and a maximum without padding."""

    def __init__(self, config, *, dtype=None, rngs):
        how = dict(dtype=dtype, rngs=rngs)
        self.conv = Conv(2, 4, (11, 7), 4, padding=2, **how)
        self.pool = MaxPool(3, 2)
        self.next = Conv(4, 6, (5, 5), padding=2, **how)
        self.mean = GlobalMean()
        self.dense = Linear(6, 10, **how)

    def __call__(self, x):
        x = self.pool(jax.nn.relu(self.conv(x)))
        return self.dense(self.mean(jax.nn.relu(self.next(x))))


class Solid(nnx.Module):
    """Three dims."""

    def __init__(self, config, *, dtype=None, rngs):
        preset, how = (
            resolve_preset(config, ResNet8.presets),
            dict(dtype=dtype, rngs=rngs),
        )
        self.conv = Conv(2, 4, (2, 3, 3), **how)
        self.norm = make_batch_norm(4, preset, dtype, rngs)
        self.pool = MaxPool(2, 2)
        self.next = Conv(4, 4, (3, 3, 3), **how)
        self.mean = GridMean((1, 2, 1))
        self.dense = Linear(8, 10, **how)

    def __call__(self, x):
        x = self.pool(jax.nn.relu(self.norm(self.conv(x))))
        x = self.mean(jax.nn.relu(self.next(x)))
        return self.dense(x.reshape(x.shape[0], 8))


def on(**axes):
    """An axis that idles too, where XLA's own split would go wrong."""
    return axes | {"tensor": 2, "replicated_axes": ("tensor",)}


CASES = {
    "7 rows on 4": (Plane, (7, 7, 2), on(spatial_h=4)),
    "13 rows on 2": (Plane, (13, 5, 2), on(spatial_h=2)),
    "27 rows on 4": (Plane, (27, 5, 2), on(spatial_h=4)),
    "13 x 7 on 2 x 2": (Plane, (13, 7, 2), on(data=2, spatial_h=2, spatial_w=2)),
    "stem, 27 rows on 2": (Stem, (27, 23, 2), on(spatial_h=2)),
    "stem, 27 columns on 4": (Stem, (23, 27, 2), on(data=2, spatial_w=4)),
    "13 rows on 2, fsdp 2": (Plane, (13, 5, 2), dict(fsdp=2, spatial_h=2)),
    "13 rows on 2, filters": (
        Plane,
        (13, 5, 2),
        dict(spatial_h=2, tensor=2, tensor_strategy="filter"),
    ),
    "13 rows on 2, channels": (
        Plane,
        (13, 5, 2),
        dict(spatial_h=2, tensor=2, tensor_strategy="channel"),
    ),
    "7 x 5 x 3 on 2 x 2": (Solid, (7, 5, 3, 2), on(spatial_d=2, spatial_h=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_float64(case, assert_equal_one_device):
    network, image, axes = CASES[case]
    assert_equal_one_device(CONFIG, axes, size=4, network=network, image=image)


def test_statistics_of_a_replica(assert_equal_one_device):
    config = ModelConfig(dropout=0.3, norm="replica")
    assert_equal_one_device(
        config, on(spatial_h=2), size=4, network=Plane, image=(13, 7, 2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [7, 13, 27])
@pytest.mark.parametrize("axis", ["spatial_h", "spatial_w"])
@pytest.mark.parametrize("devices", [2, 4])
def test_every_split(rows, axis, devices, assert_equal_one_device):
    axes = on(**{axis: devices})
    assert_equal_one_device(CONFIG, axes, size=4, network=Plane, image=(rows, rows, 2))
