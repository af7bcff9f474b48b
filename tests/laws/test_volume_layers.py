"""Law 1 for the layers of U-Nets: each in a network of its own, even and uneven rows.

The padding of uneven images holds random numbers, which no feed would leave there.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.core.block_protocol import ColumnRowPair
from jaxdist.core.errors import BadInput
from jaxdist.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    GlobalMean,
    GroupNorm,
    InstanceNorm,
    Linear,
    MaxPool,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
)
from jaxdist.models.config import ModelConfig
from jaxdist.partition.ledger import compare_flops
from jaxdist.profile.trace import trace_pruned
from jaxdist.train.step import make_train_step

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

CONFIG = ModelConfig(dropout=0.3)


def transpose(taps, stride, padding="SAME", dilation=1):
    def make(dims, how):
        return ConvTranspose(
            4,
            4,
            (taps,) * dims,
            (stride,) * dims,
            padding=padding,
            kernel_dilation=(dilation,) * dims,
            **how,
        )

    return make


class SubPixels(nnx.Module):
    """A sub-pixel convolution: more channels, then more rows."""

    def __init__(self, factor, dims, how):
        self.conv = Conv(4, 4 * factor**dims, (3,) * dims, **how)
        self.shuffle = PixelShuffle(factor)

    def __call__(self, x):
        return self.shuffle(self.conv(x))


class Folded(nnx.Module):
    """Rows that become channels, and a convolution of those."""

    def __init__(self, factor, dims, how):
        self.unshuffle = PixelUnshuffle(factor)
        self.conv = Conv(4 * factor**dims, 4, (3,) * dims, **how)

    def __call__(self, x):
        return self.conv(self.unshuffle(x))


LAYERS = {
    "transpose 2 of 2": transpose(2, 2),
    "transpose 3 of 2": transpose(3, 2),
    "transpose 4 of 2, VALID": transpose(4, 2, "VALID"),
    "transpose 5 of 3": transpose(5, 3),
    "transpose 3, dilated": transpose(3, 1, dilation=2),
    "nearest 2": lambda dims, how: Upsample(2),
    "linear 2": lambda dims, how: Upsample(2, "linear"),
    "linear 3": lambda dims, how: Upsample(3, "linear"),
    "pixel shuffle 2": lambda dims, how: SubPixels(2, dims, how),
    "group norm": lambda dims, how: GroupNorm(4, 2, **how),
    "instance norm": lambda dims, how: InstanceNorm(4, **how),
    "depthwise, dilated": lambda dims, how: Conv(
        4,
        4,
        (3,) * dims,
        kernel_dilation=(2,) * dims,
        feature_group_count=4,
        **how,
    ),
    "average 3 of 1": lambda dims, how: AvgPool(3, 1, padding=1),
    "average 5 of 2": lambda dims, how: AvgPool(5, 2, padding=2),
}


def network(make, dims):
    class Net(nnx.Module):
        """A stem of stride 2, the layer, a convolution over what it made."""

        def __init__(self, config, *, dtype=None, rngs):
            how = dict(dtype=dtype, rngs=rngs)
            self.stem = Conv(2, 4, (3,) * dims, 2, **how)
            self.layer = make(dims, how)
            self.tail = Conv(4, 4, (3,) * dims, **how)
            self.mean = GlobalMean()
            self.dense = Linear(4, 10, **how)

        def __call__(self, x):
            x = self.layer(jnp.tanh(self.stem(x)))
            return self.dense(self.mean(jnp.tanh(self.tail(x))))

    return Net


class Skips(nnx.Module):
    """Two levels down and up, with all ways to go up and skips between."""

    def __init__(self, config, *, dtype=None, rngs, dims=3):
        how = dict(dtype=dtype, rngs=rngs)
        self.stem = Conv(2, 4, (3,) * dims, **how)
        self.norm = GroupNorm(4, 2, **how)
        self.pool = MaxPool(2, 2)
        self.low = Conv(4, 4, (3,) * dims, feature_group_count=2, **how)
        self.mean = AvgPool(2, 2)
        self.lowest = Conv(4, 4, (1,) * dims, **how)
        self.linear = Upsample(2, "linear")
        self.up = ConvTranspose(8, 4, (3,) * dims, (2,) * dims, **how)
        self.last = Conv(8, 4, (3,) * dims, **how)
        self.end, self.dense = GlobalMean(), Linear(4, 10, **how)

    def __call__(self, x):
        high = jnp.tanh(self.norm(self.stem(x)))
        low = jax.nn.relu(self.low(self.pool(high)))
        x = self.linear(self.lowest(self.mean(low)))
        x = self.up(jnp.concatenate([low, x], -1))
        x = jnp.tanh(self.last(jnp.concatenate([high, x], -1)))
        return self.dense(self.end(x))


class Skips2D(Skips):
    """The same of two dims."""

    def __init__(self, config, **how):
        super().__init__(config, dims=2, **how)


class Pair(nnx.Module):
    """A group norm between the layers of a tensor-parallel pair."""

    pairs = (ColumnRowPair(first=("conv1",), last="conv2", inner=("norm",)),)

    def __init__(self, config, *, dtype=None, rngs):
        how = dict(dtype=dtype, rngs=rngs)
        self.conv1 = Conv(2, 8, (3, 3), **how)
        self.norm = GroupNorm(8, 4, **how)
        self.conv2 = Conv(8, 4, (3, 3), **how)
        self.mean, self.dense = GlobalMean(), Linear(4, 10, **how)

    def __call__(self, x):
        x = self.conv2(jnp.tanh(self.norm(self.conv1(x))))
        return self.dense(self.mean(x))


UNSHUFFLE = network(lambda dims, how: Folded(2, dims, how), 2)
FLAT = {name: network(make, 2) for name, make in LAYERS.items()}


def on(**axes):
    """An axis that idles too, where XLA's own split would go wrong."""
    return axes | {"tensor": 2, "replicated_axes": ("tensor",)}


@pytest.mark.parametrize("name", LAYERS)
def test_even_rows(name, assert_equal_one_device):
    axes = dict(data=2, spatial_h=2, spatial_w=2)
    assert_equal_one_device(CONFIG, axes, size=4, network=FLAT[name], image=(16, 8, 2))


@pytest.mark.parametrize("name", LAYERS)
def test_uneven_rows(name, assert_equal_one_device):
    assert_equal_one_device(
        CONFIG, on(spatial_h=2), size=4, network=FLAT[name], image=(13, 5, 2)
    )


@pytest.mark.slow
@pytest.mark.parametrize("rows", [27, 32])
@pytest.mark.parametrize("name", LAYERS)
def test_four_devices(name, rows, assert_equal_one_device):
    assert_equal_one_device(
        CONFIG, on(spatial_h=4), size=4, network=FLAT[name], image=(rows, 5, 2)
    )


CASES = {
    "fsdp 2 x spatial_h 2": (Skips2D, (16, 8, 2), dict(fsdp=2, spatial_h=2)),
    "filters": (
        Skips2D,
        (16, 8, 2),
        dict(spatial_h=2, tensor=2, tensor_strategy="filter"),
    ),
    "channels, 12 rows on 2": (
        Skips2D,
        (12, 8, 2),
        dict(spatial_h=2, tensor=2, tensor_strategy="channel"),
    ),
    "groups of channels on tensor 2": (Pair, (8, 8, 2), dict(spatial_h=2, tensor=2)),
    "spatial_d 2 x spatial_h 2 x spatial_w 2": (
        Skips,
        (8, 8, 8, 2),
        on(spatial_d=2, spatial_h=2, spatial_w=2),
    ),
    "pixel unshuffle": (UNSHUFFLE, (16, 8, 2), dict(spatial_h=2, spatial_w=2)),
    "pixel unshuffle, 12 rows on 2": (UNSHUFFLE, (12, 8, 2), on(spatial_h=2)),
    "12 x 8 x 4 on 2 x 2": (Skips, (12, 8, 4, 2), on(spatial_d=2, spatial_h=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_skips(case, assert_equal_one_device):
    kind, image, axes = CASES[case]
    assert_equal_one_device(CONFIG, axes, size=4, network=kind, image=image)


SPLITS = {
    "even": (16, dict(data=2, spatial_h=2)),
    "uneven": (12, dict(spatial_h=2)),
    "filter": (16, dict(spatial_w=2, tensor=2, tensor_strategy="filter")),
    "channel": (16, dict(tensor=2, tensor_strategy="channel")),
}


@pytest.mark.parametrize("split", SPLITS)
def test_the_step_does_what_the_plan_says(split, parts):
    rows, axes = SPLITS[split]
    task = parts.make_task(CONFIG, jnp.float32, Skips2D)
    batch = parts.make_batch(CONFIG, jnp.float32, 8, (rows, 16, 2))
    layout = parts.layout_of(task, axes, batch)
    step = trace_pruned(
        make_train_step(layout), layout.state, layout.padded_shapes(layout.batch_shapes)
    )
    planned = layout.ledger.layer_flops
    found = compare_flops(planned, layout.traced_flops(step, planned))
    assert "up" in {work.layer for work in found}
    # Where rows are uneven, replacing padding is 2 % of layers as small as these.
    rel = 0.03 if split == "uneven" else 0.01
    for work in found:
        assert work.traced == pytest.approx(work.planned, rel=rel, abs=4), work.layer


class Shifted(nnx.Module):
    """A skip whose rows are another number than those that it meets."""

    def __init__(self, config, *, dtype=None, rngs):
        how = dict(dtype=dtype, rngs=rngs)
        self.half = Conv(2, 4, (3, 3), 2, **how)
        self.cut = Conv(2, 4, (9, 9), padding="VALID", **how)
        self.mean, self.dense = GlobalMean(), Linear(8, 10, **how)

    def __call__(self, x):
        return self.dense(self.mean(jnp.concatenate([self.half(x), self.cut(x)], -1)))


def test_skips_of_blocks_that_do_not_align_are_refused(parts):
    task = parts.make_task(CONFIG, jnp.float32, Shifted)
    batch = parts.make_batch(CONFIG, jnp.float32, 4, (16, 16, 2))
    with pytest.raises(BadInput, match="cannot be split along spatial") as refused:
        parts.layout_of(task, dict(spatial_h=2), batch)
    assert "same strides" in refused.value.rule
