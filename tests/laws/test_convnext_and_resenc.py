"""Law 1 for ConvNeXt and the residual encoder U-Net, alone, in hybrids and in stages.

Windows of 7 rows over blocks of 2 reach over several devices.
"""

import jax
import jax.numpy as jnp
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(900)]

CONVNEXT = ModelConfig(name="convnext_t", size="tiny", dropout=0.3)
RESENC = ModelConfig(name="resenc_unet3d", size="tiny", loss="dice_cross_entropy")
FILTERS = dict(tensor=2, tensor_strategy="filter")
IDLE = dict(replica=2, replicated_axes=("replica",))

CASES = {
    "convnext, data 2 x spatial_h 2 x tensor 2": (
        CONVNEXT,
        None,
        dict(data=2, spatial_h=2, tensor=2),
    ),
    "resenc, spatial_d 2 x spatial_w 2 x idle 2": (
        RESENC,
        None,
        dict(spatial_d=2, spatial_w=2, **IDLE),
    ),
}
MORE = {
    "convnext, fsdp 4": (CONVNEXT, None, dict(fsdp=4)),
    "convnext, fsdp 2 x spatial_w 2 x idle 2": (
        CONVNEXT,
        None,
        dict(fsdp=2, spatial_w=2, **IDLE),
    ),
    "convnext, filters": (CONVNEXT, None, dict(spatial_h=2, **FILTERS)),
    "convnext, 56 rows on 4": (CONVNEXT, (56, 32, 3), dict(spatial_h=4)),
    "resenc, fsdp 2 x spatial_h 2": (RESENC, None, dict(fsdp=2, spatial_h=2)),
    "resenc, pairs": (RESENC, None, dict(spatial_d=2, tensor=2)),
    "resenc, filters": (RESENC, None, dict(spatial_d=2, **FILTERS)),
    "resenc, channels": (
        RESENC,
        None,
        dict(spatial_h=2, tensor=2, tensor_strategy="channel"),
    ),
    "resenc, 12 x 8 x 4 on 2 x 2": (
        RESENC,
        (12, 8, 4, 2),
        dict(spatial_d=2, spatial_h=2),
    ),
}


def check(case, assert_equal_one_device):
    config, image, axes = case
    assert_equal_one_device(config, axes, size=4, image=image)


@pytest.mark.parametrize("name", CASES)
def test_layouts(name, assert_equal_one_device):
    check(CASES[name], assert_equal_one_device)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_further_layouts(name, assert_equal_one_device):
    check(MORE[name], assert_equal_one_device)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_of_convnext(schedule, parts):
    with jax.enable_x64(True):
        task = parts.make_task(CONVNEXT, jnp.float64)
        batch = parts.make_batch(CONVNEXT, jnp.float64, 4)
        state = parts.make_state(task)
        order = PipelineConfig(schedule=schedule)
        axes = {"pipe": 2, "order": order, "spatial_h": 2, "microbatches": 2}
        layout = parts.layout_of(task, axes, batch)
        want = jax.jit(lambda *args: parts.one_device(task, *args))(state, batch)
        got = parts.run_layout(layout, state, parts.padded(batch, layout))
        parts.assert_leaves_equal(got, want, 1e-9)


def test_depthwise_layers_split_no_channels(check_layout):
    axes = dict(tensor=2, tensor_strategy="channel")
    with pytest.raises(BadInput, match="no 2 equal slices of channels"):
        check_layout(CONVNEXT, axes, size=4)
