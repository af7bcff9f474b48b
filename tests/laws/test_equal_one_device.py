"""Law 1: every layout's step equals the single-device step, leaf by leaf, in float64."""

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.conv_blocks import Head
from jaxdist.models.resnet import ResNet8, Stem
from jaxdist.partition import compiler_rewrites
from jaxdist.partition.compiler_rewrites import CompilerRules

pytestmark = pytest.mark.laws

MODEL = ModelConfig(width=4, dropout=0.3)
LAYOUTS = {
    "data 4": dict(data=4),
    "data 8 x idle 2": dict(data=8, tensor=2, replicated_axes=("tensor",)),
    "spatial_h 2": dict(spatial_h=2),
    "spatial_h 4 x idle 2": dict(spatial_h=4, tensor=2, replicated_axes=("tensor",)),
    "spatial_w 2 x idle 2": dict(spatial_w=2, tensor=2, replicated_axes=("tensor",)),
    "data 4 x spatial_h 2 x idle 2": dict(
        data=4, spatial_h=2, tensor=2, replicated_axes=("tensor",)
    ),
    "data 2 x fsdp 2": dict(data=2, fsdp=2),
    "fsdp 4 x spatial_h 2": dict(fsdp=4, spatial_h=2),
    "fsdp 2 x spatial_h 2, zero 1": dict(fsdp=2, spatial_h=2, zero=1),
    "tensor 2": dict(tensor=2),
    "data 2 x spatial_h 2 x tensor 2, blocks remade": dict(
        data=2, spatial_h=2, tensor=2, remat=True
    ),
    "fsdp 2 x spatial_w 2, blocks remade": dict(fsdp=2, spatial_w=2, remat=True),
    "data 2 x tensor 2, filter": dict(data=2, tensor=2, tensor_strategy="filter"),
    "tensor 2 x spatial_h 2, channel": dict(
        tensor=2, spatial_h=2, tensor_strategy="channel"
    ),
    "data 2 x fsdp 2 x spatial_h 2 x tensor 2": dict(
        data=2, fsdp=2, spatial_h=2, tensor=2
    ),
    "data 2 x spatial_h 2 x spatial_w 2 x idle 2": dict(
        data=2, spatial_h=2, spatial_w=2, tensor=2, replicated_axes=("tensor",)
    ),
}


PARTS = (
    "spatial_h 2",
    "data 2 x fsdp 2",
    "tensor 2",
    "data 2 x tensor 2, filter",
    "data 2 x spatial_h 2 x spatial_w 2 x idle 2",
)
"""Layouts whose axes and ways others have with more; and tests/laws/matrix.py."""


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=pytest.mark.slow if layout in PARTS else ())
        for layout in LAYOUTS
    ],
)
def test_float64(layout, assert_equal_one_device):
    assert_equal_one_device(MODEL, LAYOUTS[layout])


@pytest.mark.parametrize("zero", [1, 3])
def test_gradients_that_are_scattered_in_two_steps(
    zero, monkeypatch, assert_equal_one_device
):
    # As for TPUs, where a reduce-scatter over all devices would be an all-reduce.
    rules = {"cpu": CompilerRules(sums_over_all=True, lanes=128)}
    monkeypatch.setattr(compiler_rewrites, "COMPILER_RULES", rules)
    assert_equal_one_device(MODEL, dict(fsdp=8, zero=zero))


class Shallow(nnx.Module):
    """One convolution, norm, dropout and head: float32 has little to lose here."""

    def __init__(self, config, *, dtype=None, rngs):
        preset = resolve_preset(config, ResNet8.presets)
        self.stem = Stem(preset, dtype, rngs)
        self.head = Head(preset.width, preset, dtype, rngs)

    def __call__(self, x):
        return self.head(self.stem(x))


@pytest.mark.parametrize("axis", ["data", "spatial_h"])
def test_float32_shallow(axis, assert_equal_one_device):
    axes = {axis: 2, "tensor": 2, "replicated_axes": ("tensor",)}
    assert_equal_one_device(
        MODEL, axes, dtype=jnp.float32, tolerance=1e-5, network=Shallow
    )
