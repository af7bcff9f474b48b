"""Law 1 where images are split until a block of the network and whole behind it.

The audit is part of it: what is gathered is in the ledger, to the byte.
"""

import jax.numpy as jnp
import pytest

from jaxdist.layers import AvgPool, Conv, Dropout, MaxPool
from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import Chain, ConvNormRelu, Head
from jaxdist.models.resnet import ResNet8

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]


class Noisy(Chain):
    """Dropout of images, and blocks that are one layer."""

    def __init__(self, config, *, dtype=None, rngs):
        preset, how = (
            resolve_preset(config, ResNet8.presets),
            dict(dtype=dtype, rngs=rngs),
        )
        super().__init__(
            {
                "stem": ConvNormRelu((2, 4), 5, preset, dtype, rngs, 2, padding=2),
                "drop": Dropout(preset.dropout),
                "pool": MaxPool(3, 2, padding=1),
                "again": Dropout(preset.dropout),
                "conv": Conv(4, 4, (3, 3), 2, **how),
                "blur": AvgPool(3, 1, padding=1),
                "unit": ConvNormRelu((4, 8), 3, preset, dtype, rngs, padding=1),
                "head": Head(8, preset, dtype, rngs),
            }
        )


def network(name="resnet8", **how):
    return ModelConfig(name=name, size="tiny", dropout=0.3, **how)


def until(block, **axes):
    return axes | {"spatial_end": block}


IDLE = {"replica": 2, "replicated_axes": ("replica",)}
PLAIN = dict(network=None, image=None)
ODD = dict(network=Noisy, image=(27, 13, 2))

CASES = {
    "resnet50, samples": (
        network("resnet50"),
        until("stage1_block2", data=2, spatial_h=2),
        PLAIN,
    ),
    "resnet50, 29 x 27, columns and parameters": (
        network("resnet50"),
        until("stage1_block1", fsdp=2, spatial_w=2),
        PLAIN | {"image": (29, 27, 3)},
    ),
    "googlenet, rows and columns": (
        network("googlenet", aux=True),
        until("inception3a", spatial_h=2, spatial_w=2),
        PLAIN,
    ),
    "vgg16, in a pair": (
        network("vgg16"),
        until("conv2_1", spatial_h=2, tensor=2),
        PLAIN,
    ),
    "cosmoflow, in depth": (
        network("cosmoflow"),
        until("conv2", data=2, spatial_d=2, spatial_h=2),
        PLAIN,
    ),
    "noise, 27 x 13, on an idle axis": (
        network(),
        until("again", spatial_h=2, spatial_w=2, **IDLE),
        ODD,
    ),
}
MORE = {
    "resnet50, filters": (
        network("resnet50"),
        until("stage1_block2", spatial_h=2, tensor=2, tensor_strategy="filter"),
        PLAIN,
    ),
    "resnet50, channels": (
        network("resnet50"),
        until("head", spatial_h=2, tensor=2, tensor_strategy="channel"),
        PLAIN,
    ),
    "resnet50, statistics of a replica": (
        network("resnet50", norm="replica"),
        until("stage1_block1", spatial_h=2, spatial_w=2),
        PLAIN,
    ),
    "resnet50, blocks remade": (
        network("resnet50"),
        until("stage1_block1", data=2, spatial_h=2, remat=True),
        PLAIN,
    ),
    "googlenet, behind the auxiliary head": (
        network("googlenet", aux=True),
        until("pool4", data=2, spatial_h=2),
        PLAIN,
    ),
    "googlenet, idle": (
        network("googlenet"),
        until("conv3", spatial_w=2, **IDLE),
        PLAIN,
    ),
    "googlenet, 27 x 30": (
        network("googlenet"),
        until("inception3a", spatial_h=2),
        PLAIN | {"image": (27, 30, 3)},
    ),
    "inception_v3": (network("inception_v3"), until("head", spatial_h=2), PLAIN),
    "alexnet_two_group, a pair": (
        network("alexnet_two_group"),
        until("conv3", spatial_h=2, tensor=2),
        PLAIN,
    ),
    "vgg16, pool in a pair": (
        network("vgg16"),
        until("pool1", data=2, spatial_w=2, tensor=2),
        PLAIN,
    ),
    "vgg16, before the grid": (
        network("vgg16"),
        until("flatten", fsdp=2, spatial_h=2, zero=1),
        PLAIN,
    ),
    "cosmoflow, 7 x 6 x 5": (
        network("cosmoflow"),
        until("conv2", spatial_d=2, spatial_w=2),
        PLAIN | {"image": (7, 6, 5, 4)},
    ),
    "cosmoflow, a pair": (
        network("cosmoflow"),
        until("conv2", data=2, spatial_d=2, tensor=2),
        PLAIN,
    ),
    "resnet8, four slices": (network(), until("block3", spatial_h=4), PLAIN),
    "resnet8, four axes": (
        network(),
        until("block2", data=2, fsdp=2, spatial_h=2, tensor=2),
        PLAIN,
    ),
    **{
        f"noise, 27 x 13, until {block}": (
            network(),
            until(block, data=2, spatial_h=4),
            ODD,
        )
        for block in ("drop", "pool", "conv", "blur", "unit", "head")
    },
}


DEALT = {"spatial_end_mode": "samples"}
SAMPLES = {
    "resnet50, in replicas": (
        network("resnet50"),
        until("stage1_block2", data=2, spatial_h=2, **DEALT),
        PLAIN,
    ),
    "googlenet, 30 x 27, rows and columns": (
        network("googlenet", aux=True),
        until("pool4", spatial_h=2, spatial_w=2, **DEALT),
        PLAIN | {"image": (30, 27, 3)},
    ),
}
MORE_SAMPLES = {
    "resnet50, statistics of a replica": (
        network("resnet50", norm="replica"),
        until("stage1_block1", spatial_h=2, spatial_w=2, **DEALT),
        PLAIN,
    ),
    "resnet50, parameters, blocks remade": (
        network("resnet50"),
        until("stage1_block1", fsdp=2, spatial_w=2, remat=True, **DEALT),
        PLAIN,
    ),
    "vgg16, in a pair": (
        network("vgg16"),
        until("conv2_1", spatial_h=2, tensor=2, **DEALT),
        PLAIN,
    ),
    "vgg16, channels": (
        network("vgg16"),
        until("conv2_2", spatial_h=2, tensor=2, tensor_strategy="channel", **DEALT),
        PLAIN,
    ),
    "cosmoflow, in depth": (
        network("cosmoflow"),
        until("conv2", spatial_d=2, spatial_h=2, spatial_w=2, **DEALT),
        PLAIN,
    ),
    "resnet8, four axes": (
        network(),
        until("block2", data=2, fsdp=2, spatial_h=2, tensor=2, **DEALT),
        PLAIN,
    ),
    **{
        f"noise, 27 x 13, until {block}": (
            network(),
            until(block, spatial_h=2, spatial_w=2, **DEALT, **IDLE),
            ODD,
        )
        for block in ("drop", "pool", "again", "conv", "unit", "head")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_float64(case, assert_equal_one_device):
    config, axes, how = CASES[case]
    assert_equal_one_device(config, axes, size=8, **how)


@pytest.mark.parametrize("case", SAMPLES)
def test_rows_for_samples(case, assert_equal_one_device):
    config, axes, how = SAMPLES[case]
    assert_equal_one_device(config, axes, size=8, **how)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_SAMPLES)
def test_more_rows_for_samples(case, assert_equal_one_device):
    config, axes, how = MORE_SAMPLES[case]
    assert_equal_one_device(config, axes, size=8, **how)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_more_in_float64(case, assert_equal_one_device):
    config, axes, how = MORE[case]
    assert_equal_one_device(config, axes, size=8, **how)


@pytest.mark.slow
def test_float32(assert_equal_one_device):
    axes = until("unit", data=2, spatial_h=2)
    config = network()
    assert_equal_one_device(
        config, axes, dtype=jnp.float32, size=4, tolerance=1e-4, **ODD
    )
