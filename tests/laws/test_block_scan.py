"""Law 1 with equal blocks as loops: gradients equal one device, and the audit holds."""

import pytest

from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import Head, Network
from jaxdist.models.resnet import BasicBlock, ResNet8, Stem

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", depth=3, dropout=0.1)
LLAMA = ModelConfig(name="llama", size="tiny", depth=4)

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
