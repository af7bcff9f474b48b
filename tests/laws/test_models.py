"""Law 1 for what only some networks have: auxiliary heads, whole or of split images."""

import pytest

from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

BOTH = dict(data=2, spatial_h=2, tensor=2)


def with_heads(name):
    return ModelConfig(name=name, size="tiny", dropout=0.3, aux=True)


def test_auxiliary_head(assert_equal_one_device):
    assert_equal_one_device(with_heads("googlenet"), BOTH, size=8)


@pytest.mark.slow
def test_auxiliary_head_of_five_by_five(assert_equal_one_device):
    assert_equal_one_device(with_heads("inception_v3"), BOTH, size=8)
