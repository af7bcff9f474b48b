"""Law 1 where devices share the tokens of samples: a step equals one device's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.models.config import ModelConfig

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

GPT2 = ModelConfig(name="gpt2_small", size="tiny", dropout=0.3)
LLAMA = ModelConfig(name="llama", size="tiny", depth=2)

LAYOUTS = {
    "gather": (GPT2, {"context": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_equals_one_device(assert_equal_one_device, layout):
    config, axes = LAYOUTS[layout]
    assert_equal_one_device(config, axes, size=4)
