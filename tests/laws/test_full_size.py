"""Law 1 at full size: ResNet-50 on images of 64 x 64, every gradient leaf, float64."""

import pytest

from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_resnet50_over_samples_rows_and_columns(assert_equal_one_device):
    axes = dict(data=2, spatial_h=2, spatial_w=2)
    network = ModelConfig(name="resnet50", classes=10)
    assert_equal_one_device(network, axes, size=4, image=(64, 64, 3))
