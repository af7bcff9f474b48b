"""Every network: its size is that of its reference, and its chain is the network."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.launch.training.job.abstract_model import ProfileConfig, abstract_inputs
from jaxdist.layers import LSTM, Conv, ConvTranspose, bind
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import (
    image_shape,
    model_factory,
    model_names,
    takes_tokens,
)
from jaxdist.profile.layer_calls import trace_calls

PARAMETERS = {
    "alexnet": 61_100_840,
    "alexnet_two_group": 60_965_224,
    "convnext_t": 28_589_128,
    "convnext_s": 50_223_688,
    "convnext_b": 88_591_464,
    "convnext_l": 197_767_336,
    "cosmoflow": 5_597_604,
    "googlenet": 6_624_904,
    "inception_v3": 23_834_568,
    "resenc_unet3d": 102_349_770 - 1_544,
    "resnet8": 77_562,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "s2vt": 171_225_141,
    "unet2d": 31_030_658,
    "unet3d": 19_069_955 + 2_336,
    "vgg16": 138_357_544,
}
"""torchvision's; for cosmoflow MLPerf's; for the two groups and s2vt, whose arithmetic
is in its docstring and in test_s2vt.py, the paper's layer sizes. unet2d: 31.03 M, as
everyone counts figure 1; unet3d: the paper's 19,069,955 have one number for each of
2,336 filters beside the kernels, and a norm here has two. resenc_unet3d: nnU-Net's own
class has 102,349,770 with the logits of four more scales, which it trains too."""

AUXILIARY = {"googlenet": 6_379_984, "inception_v3": 3_326_696}
NETWORKS = sorted(PARAMETERS)
LARGER = ("convnext_s", "convnext_b", "convnext_l")
"""As convnext_t, with more blocks or channels: tiny they are the same."""
FULL = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in LARGER)) for name in NETWORKS
]
TINY = [name for name in NETWORKS if name not in LARGER]


def network(config):
    return nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))


@functools.cache
def full(name):
    return network(ModelConfig(name=name))


def tiny(name, **how):
    return ModelConfig(name=name, size="tiny", **how)


def count(model):
    leaves = jax.tree.leaves_with_path(nnx.state(model, nnx.Param))
    aux = [x.size for path, x in leaves if "aux_" in jax.tree_util.keystr(path)]
    return sum(x.size for _, x in leaves) - sum(aux), sum(aux)


def inputs(config, batch=2):
    return abstract_inputs(ProfileConfig(model=config, batch=batch))


def flops(call):
    """Two for each multiply and add of a convolution or a dense layer."""
    if isinstance(call.layer, Conv):
        taps = math.prod(call.layer.kernel_size) * call.layer.in_features
        return 2 * math.prod(call.out_shape) * taps // call.layer.feature_group_count
    if isinstance(call.layer, ConvTranspose):
        taps = math.prod(call.layer.kernel_size) * call.layer.out_features
        return 2 * math.prod(call.shape) * taps
    if isinstance(call.layer, nnx.Linear):
        return 2 * math.prod(call.out_shape) * call.layer.in_features
    if isinstance(call.layer, LSTM):
        read = call.layer.in_features + call.layer.hidden
        return 2 * 4 * math.prod(call.out_shape) * read
    return 0


def run(config, mode, by_blocks=False):
    """The network's program, `network(x)` or block by block, and its outputs."""
    graph, state = nnx.split(network(config))

    def apply(state, *arrays):
        model = nnx.merge(graph, state)
        getattr(model, mode)()
        bind(model, jax.random.key(0), jnp.arange(len(arrays[0]), dtype=jnp.int32))
        if not by_blocks:
            return model(*arrays)
        x = arrays if len(arrays) > 1 else arrays[0]
        for _, block in model.chain():
            x = block(x)
        return x

    program, out = jax.make_jaxpr(apply, return_shape=True)(state, *inputs(config))
    return str(program), [x.shape for x in jax.tree.leaves(out)]


def test_every_network_is_in_the_table():
    others = {
        name for name in model_names() if not takes_tokens(ModelConfig(name=name))
    }
    assert others == set(PARAMETERS)


@pytest.mark.parametrize("name", FULL)
def test_parameters_equal_the_reference(name):
    assert count(full(name)) == (PARAMETERS[name], 0)
    kind = type(full(name))
    assert f"{PARAMETERS[name]:,}" in kind.__doc__


@pytest.mark.parametrize("name", sorted(AUXILIARY))
def test_auxiliary_heads_are_counted_apart(name):
    model = network(ModelConfig(name=name, aux=True))
    assert count(model) == (PARAMETERS[name], AUXILIARY[name])
    assert f"{AUXILIARY[name]:,}" in type(model).__doc__


@pytest.mark.parametrize("name", [n for n in FULL if n.values != ("resnet8",)])
def test_flops_are_those_of_the_docstring(name):
    graph, *state = nnx.split(full(name), nnx.Param, ...)
    calls, _ = trace_calls(graph, state, *inputs(ModelConfig(name=name), batch=1))
    total = sum(map(flops, calls)) / 1e9
    digits, unit = (total, "G") if total < 1000 else (total / 1000, "T")
    said = f"{digits:#.3g}".rstrip(".") + f" {unit}"
    assert f"FLOPs a sample: {said}" in type(full(name)).__doc__


@pytest.mark.parametrize("name", TINY)
def test_the_chain_is_the_network(name):
    config = tiny(name)
    model, chain = run(config, "eval"), run(config, "eval", by_blocks=True)
    assert model == chain
    outputs = {
        **{"cosmoflow": (4,), "s2vt": (6, 20)},
        **{"unet2d": (16, 16, 4), "unet3d": (8, 8, 8, 4)},
        "resenc_unet3d": (8, 8, 8, 4),
    }
    assert model[1] == [(2, *outputs.get(name, (10,)))]


@pytest.mark.parametrize("name", TINY)
def test_tiny_networks_are_small(name):
    config = tiny(name)
    parameters, _ = count(network(config))
    assert parameters < 350_000
    stems_of_seven_and_more = ("alexnet", "alexnet_two_group", "inception_v3")
    limit = 75 if name in stems_of_seven_and_more else 32
    assert max(image_shape(config)[:-1]) <= limit


@pytest.mark.parametrize("name", sorted(AUXILIARY))
def test_auxiliary_heads_speak_in_training_alone(name):
    config = tiny(name, aux=True)
    assert run(config, "train")[1] == [(2, 10), (2, 10)]
    assert run(config, "eval")[1] == [(2, 10)]


def test_settings_change_the_network():
    config = tiny("alexnet", classes=7, channels=1, width=16)
    assert run(config, "eval")[1] == [(2, 7)]
    assert image_shape(config) == (64, 64, 1)
    assert network(config).conv1.conv.kernel.shape == (11, 11, 1, 16)


def test_auxiliary_heads_of_a_network_without_are_refused():
    with pytest.raises(BadInput, match="resnet50 has no auxiliary heads"):
        network(ModelConfig(name="resnet50", aux=True))


@pytest.mark.parametrize(("width", "near"), [(1, 4), (3, 4), (8, 6)])
def test_a_width_without_two_groups_is_refused(width, near):
    config = tiny("alexnet_two_group", width=width)
    with pytest.raises(BadInput, match="do not divide into its groups") as refused:
        network(config)
    assert f"model.width={near}" in str(refused.value)
    fitting = tiny("alexnet_two_group", width=near, dropout=0.0)

    def run(x):
        return model_factory(fitting)(rngs=nnx.Rngs(0))(x)

    nnx.eval_shape(run, *inputs(fitting))
    network(tiny("alexnet", width=width))
