"""The residual encoder U-Net beside its figure: which features meet where."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.layers import bind
from jaxdist.models.config import ModelConfig
from jaxdist.models.resenc_unet import ResEncUNet3D

BLOCKS = (1, 2, 2)


@pytest.fixture
def network(monkeypatch):
    deep = replace(ResEncUNet3D.presets["tiny"], blocks=BLOCKS)
    monkeypatch.setitem(ResEncUNet3D.presets, "tiny", deep)
    config = ModelConfig(name="resenc_unet3d", size="tiny")
    model = ResEncUNet3D(config, rngs=nnx.Rngs(0))
    model.eval()
    bind(model)
    return model


def relu(x):
    return jnp.where(x > 0, x, 0.01 * x)


def as_published(model, x):
    """Isensee et al. 2024; blocks of He et al. 2019, figure 2c."""

    def convolve(part, x):
        return part.norm(part.conv(x))

    x, skips = relu(convolve(model.stem, x)), []
    for scale, count in enumerate(BLOCKS):
        for number in range(count):
            block = getattr(model, f"down{scale}_block{number}")
            y = convolve(block.conv2, relu(convolve(block.conv1, x)))
            if number == 0 and scale > 0:
                batch, *rows, width = x.shape
                pairs = [side for n in rows for side in (n // 2, 2)]
                x = x.reshape(batch, *pairs, width).mean((2, 4, 6))
            if block.shortcut is not None:
                x = convolve(block.shortcut, x)
            x = relu(y + x)
        skips.append(x)
    for scale in reversed(range(len(BLOCKS) - 1)):
        level = getattr(model, f"up{scale}")
        x = jnp.concatenate([level.grow(x), skips[scale]], -1)
        x = relu(convolve(level.conv, x))
    return model.head(x)


def test_the_chain_is_the_published_network(network):
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 8, 2))
    got, want = network(x), as_published(network, x)
    assert got.shape == (2, 8, 8, 8, 4)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
