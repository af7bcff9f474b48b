"""Law 1 for captions: clips, words and padding over samples, frames and weights."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

TINY = ModelConfig(name="s2vt", size="tiny", dropout=0.3)
SHORT = {
    "data 4 x idle 2": dict(data=4, tensor=2, replicated_axes=("tensor",)),
    "data 2 x spatial_h 2 x tensor 2": dict(data=2, spatial_h=2, tensor=2),
}
LONG = {
    "data 2 x fsdp 2": dict(data=2, fsdp=2),
    "fsdp 2 x tensor 2, filter": dict(fsdp=2, tensor=2, tensor_strategy="filter"),
    "data 2 x tensor 2, channel": dict(data=2, tensor=2, tensor_strategy="channel"),
    "fsdp 2 x spatial_w 2, zero 1": dict(fsdp=2, spatial_w=2, zero=1),
    "data 2 x spatial_h 2 x spatial_w 2 x idle 2": dict(
        data=2, spatial_h=2, spatial_w=2, tensor=2, replicated_axes=("tensor",)
    ),
}


@pytest.mark.parametrize("layout", SHORT)
def test_one_layout(layout, assert_equal_one_device):
    assert_equal_one_device(TINY, SHORT[layout], size=8)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LONG)
def test_other_layouts(layout, assert_equal_one_device):
    assert_equal_one_device(TINY, LONG[layout], size=8)


def test_frames_are_not_split_along_time(check_layout):
    with pytest.raises(BadInput, match="nothing is split along spatial_d"):
        check_layout(TINY, dict(spatial_d=2))
