"""Law 1 with equal blocks as loops: gradients equal one device, and the audit holds."""

from dataclasses import replace
from typing import ClassVar

import jax.numpy as jnp
import pytest

from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import Head, Network
from jaxdist.models.resenc_unet import ResEncUNet3D
from jaxdist.models.resnet import BasicBlock, ResNet8, Stem

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=3, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=4)
RESENC = ModelConfig(name="resenc_unet3d", size="tiny", loss="dice_cross_entropy")

TOKENS = {
    "data": {"data": 2},
    "fsdp": {"fsdp": 4},
    "zero 1": {"fsdp": 4, "zero": 1},
    "fsdp and tensor": {"data": 2, "fsdp": 2, "tensor": 2},
    "sequence": {"fsdp": 2, "tensor": 2, "tensor_strategy": "sequence"},
    "microbatches": {"fsdp": 2, "microbatches": 2},
    "remat": {"fsdp": 4, "remat": True},
    "remat to the middle of a loop": {"fsdp": 4, "remat": True, "remat_end": "block1"},
}
IMAGES = {
    "rows, uneven": {"data": 2, "spatial_h": 4, "fsdp": 1},
    "fsdp and rows": {"fsdp": 2, "spatial_h": 2},
    "rows to the middle of a loop": {"spatial_h": 2, "spatial_end": "block2"},
}


class Deep(Network):
    """A residual network of three equal blocks with batch statistics and dropout."""

    def __init__(self, config, *, dtype=None, rngs):
        preset = resolve_preset(config, ResNet8.presets)
        w, how = preset.width, (preset, dtype, rngs)
        blocks = {f"block{i}": BasicBlock((w, w), 1, *how) for i in (1, 2, 3)}
        super().__init__({"stem": Stem(*how), **blocks, "head": Head(w, *how)})


class DeepUNet(ResEncUNet3D):
    """A residual U-Net of equal blocks behind others: skips pass by the loops."""

    presets: ClassVar = {
        "tiny": replace(ResEncUNet3D.presets["tiny"], blocks=(2, 3, 4))
    }


# Each layout with one of the two; `make laws-all` has both.
GPT2_LAYOUTS = ("data", "fsdp and tensor", "remat")


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        pytest.param(
            config,
            layout,
            id=f"{config.name}-{layout}",
            marks=()
            if (config is GPT2) == (layout in GPT2_LAYOUTS)
            else pytest.mark.slow,
        )
        for config in (GPT2, LLAMA)
        for layout in TOKENS
    ],
)
def test_transformers_with_a_loop(assert_equal_one_device, config, layout):
    assert_equal_one_device(config, {**TOKENS[layout], "scan": "on"}, size=8)


@pytest.mark.parametrize("layout", IMAGES)
def test_a_residual_network_with_a_loop(assert_equal_one_device, layout):
    axes = {**IMAGES[layout], "scan": "on"}
    image = (18, 16, 1) if layout == "rows, uneven" else None
    config = ModelConfig(width=4, dropout=0.3)
    assert_equal_one_device(config, axes, network=Deep, image=image)


@pytest.mark.parametrize(
    "axes",
    [
        pytest.param({"spatial_d": 2, "fsdp": 2}, id="fsdp and planes"),
        pytest.param({"data": 2, "remat": True}, id="remat", marks=pytest.mark.slow),
    ],
)
def test_skips_pass_by_a_loop(parts, assert_equal_one_device, axes):
    axes = {**axes, "scan": "on"}
    assert_equal_one_device(RESENC, axes, network=DeepUNet, size=4)
    task = parts.make_task(RESENC, jnp.float32, DeepUNet)
    batch = parts.make_batch(RESENC, jnp.float32, 4)
    scans = parts.layout_of(task, axes, batch).block_scans
    assert [scan.blocks for scan in scans] == [
        ("down0_block0", "down0_block1"),
        ("down1_block1", "down1_block2"),
        ("down2_block1", "down2_block2", "down2_block3"),
    ]
