"""ResNet-8: its size is what its docstring says, and its chain is the model."""

import re
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.layers import BatchNorm
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import make_model, model_factory
from jaxdist.models.resnet import ResNet8


@pytest.fixture(scope="module")
def model():
    return ResNet8(ModelConfig(width=4), rngs=nnx.Rngs(0))


def test_parameters_are_those_of_the_docstring():
    full = nnx.eval_shape(lambda: ResNet8(ModelConfig(), rngs=nnx.Rngs(0)))
    count = sum(x.size for x in jax.tree.leaves(nnx.state(full, nnx.Param)))
    assert f"{count:,}" in re.findall(r"[\d,]+", ResNet8.__doc__)


def test_the_chain_is_the_model(model):
    model.eval()
    x = y = jnp.asarray(np.random.default_rng(0).random((2, 16, 16, 1)), jnp.float32)
    for _, block in model.chain():
        y = block(y)
    np.testing.assert_array_equal(model(x), y)
    assert y.shape == (2, 10)


def test_an_unknown_model_is_answered():
    with pytest.raises(BadInput, match="did you mean resnet8"):
        model_factory(ModelConfig(name="resnet"))


@pytest.mark.parametrize("name", ["resnet8", "resnet50", "resnet152"])
def test_with_zero_gamma_every_block_begins_as_its_shortcut(name):
    config = ModelConfig(name=name, size="tiny", zero_gamma=True)
    network = make_model(asdict(config), rngs=nnx.Rngs(0))
    zeros = [
        path
        for path, layer in nnx.iter_modules(network)
        if isinstance(layer, BatchNorm) and not layer.scale[...].any()
    ]
    blocks = [name for name, _ in network.chain() if "block" in name]
    assert sorted(path[0] for path in zeros) == blocks


def test_zero_gamma_is_for_residual_networks():
    with pytest.raises(BadInput, match="vgg16 has no residual blocks"):
        make_model(asdict(ModelConfig(name="vgg16", zero_gamma=True)), rngs=nnx.Rngs(0))


def test_a_group_of_replicas_is_for_statistics_of_replicas():
    with pytest.raises(BadInput, match="one group already") as caught:
        ModelConfig(norm_group=4)
    assert caught.value.remedy == ("model.norm=replica model.norm_group=4",)
