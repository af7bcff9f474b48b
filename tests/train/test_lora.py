"""Adapters: which layers have them, what they begin as, and how they are merged."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.train.lora import LoraConfig, add_adapters, merge_adapter


def network(name="llama", **settings):
    config = ModelConfig(name=name, size="tiny", **settings)
    return model_factory(config)(rngs=nnx.Rngs(0))


def adapted(made, **settings):
    add_adapters(made, LoraConfig(**{"rank": 2} | settings), nnx.Rngs(1))
    every = nnx.iter_modules(made)
    return [
        ".".join(map(str, path))
        for path, layer in every
        if getattr(layer, "lora_a", None) is not None
    ]


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (("all-linear",), 14),
        (("query", "value"), 4),
        (("block1.mlp.up",), 1),
        (("block0.attention.*", "down"), 6),
    ],
)
def test_targets_are_names_paths_and_patterns(targets, count):
    assert len(adapted(network(depth=2), targets=targets)) == count


def test_the_layer_of_logits_has_none():
    assert not [x for x in adapted(network(tied_head=False)) if "head" in x]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(rank=-1), "lora.rank is 1 or more"),
        (dict(alpha=0), "lora.alpha is above 0"),
        (dict(rank=0, alpha=8), "lora.rank = 0, lora.alpha is set"),
        (
            dict(rank=17),
            "lora.rank = 17, the kernel of block0.attention.key is 32 x 16",
        ),
        (dict(targets=("q_proj", "value")), "lora.targets=query,value"),
        (dict(targets=("gates",)), "lora.targets=gate"),
        (dict(targets=("logits",)), "'logits', which makes the logits"),
    ],
)
def test_what_cannot_be_says_the_rule(settings, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        adapted(network(tied_head=False), **settings)


def test_a_network_without_linear_layers_has_no_adapters():
    with pytest.raises(BadInput, match="has no layers for adapters"):
        adapted(network("unet2d"))


def test_a_is_gaussian_with_the_variance_of_inputs_and_b_is_zero():
    made = network(depth=1)
    adapted(made, rank=16)
    layer = made.block0.mlp.up
    assert not layer.lora_b[...].any()
    # 32 inputs; of 512 numbers the deviation is right to 3 %.
    assert float(layer.lora_a[...].std()) == pytest.approx(32**-0.5, rel=0.15)


def test_a_merged_kernel_does_what_kernel_and_adapter_did():
    made = network(depth=1)
    adapted(made, alpha=3)
    layer = made.block0.mlp.up
    rng = np.random.default_rng(0)
    layer.lora_b[...] = jnp.asarray(rng.normal(size=layer.lora_b.shape), jnp.float32)
    x = rng.normal(size=(5, 32)).astype(np.float32)
    given = (np.asarray(v[...]) for v in (layer.kernel, layer.lora_a, layer.lora_b))
    merged = merge_adapter(*given, 3 / 2)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(layer(x), x @ merged, rtol=1e-5, atol=1e-5)
