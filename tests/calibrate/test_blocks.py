"""A network's own blocks: that those of a step are timed, both passes of each."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate.blocks import (
    BlockCase,
    _backward,
    _forward,
    _random_array,
    _residual_buffers,
    _trace_block,
    time_blocks,
)
from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.launch.calibration.block_timing import network_block_cases
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber as Described
from jaxdist.layers.manual_axes import manual_axes

NETWORKS = {
    "digits": ("digits", "data.batch=8"),
    "llama": (
        *("llama", "data.name=synthetic", "data.batch=8", "data.context=16"),
        *("model.size=tiny", "model.context=16", "data.samples=32"),
    ),
    "captions": ("captions", "data.batch=8"),
    "googlenet": (
        *("googlenet", "data.name=synthetic", "data.batch=8", "data.samples=32"),
        "model.size=tiny",
    ),
}


def config_of(name):
    source, *words = NETWORKS[name]
    return resolve_config(source, words).config


def drawn(subject, seed=0):
    draw = np.random.default_rng(seed)
    kinds = (subject.weights, subject.float_inputs, subject.other_inputs)
    return [[_random_array(draw, x) for x in kind] for kind in kinds]


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    return jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=auto)


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_in_order_are_the_network(name):
    """Each takes what the one before hands on; the last ends in the loss."""
    config = config_of(name)
    profile = Described(config).profile
    found = network_block_cases(config, (2,), 1e12)
    assert len(found) == len({subject.key for subject in found})
    assert len(found) <= len(profile.blocks)
    assert all(subject.samples == 4 for subject in found)
    assert found[0].float_inputs == ()
    weights = sum(np.prod(x.shape) for subject in found for x in subject.weights)
    assert weights >= 0.5 * profile.parameters / len(profile.blocks)
    last = jax.eval_shape(found[-1].fn, *map(list, _shapes(found[-1])))
    assert last.shape == ()
    assert found[-1].other_inputs  # labels


def _shapes(subject):
    return subject.weights, subject.float_inputs, subject.other_inputs


def test_equal_blocks_are_timed_once():
    """Llama's in the middle are alike; on other samples they are others."""
    config = config_of("llama")
    blocks = len(Described(config).profile.blocks)
    assert len(network_block_cases(config, (2,), 1e12)) == 3 < blocks + 1
    assert len(network_block_cases(config, (2, 4), 1e12)) == 6
    assert len(network_block_cases(config, (2, 2), 1e12)) == 3


def test_none_is_timed_that_takes_too_long():
    assert network_block_cases(config_of("digits"), (1,), 0.5) == ()


@pytest.mark.parametrize("name", ["digits", "llama"])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_the_way_back_is_the_gradient(name, place):
    """From what was kept, of the microbatch whose turn it is."""
    subject = network_block_cases(config_of(name), (2,), 1e12)[place]
    weights, slopes, rest = drawn(subject)
    traced = _trace_block(subject)
    steep = [_random_array(np.random.default_rng(1), x) for x in traced.outputs]
    rings = _residual_buffers(traced, weights, [*slopes, *rest])
    rings = [np.stack([np.zeros_like(x[1]), x[1]]) for x in rings]

    def whole(weights, slopes):
        out = jax.tree.leaves(subject.fn(weights, slopes, rest))
        floats = [x for x in out if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((x * dy).sum() for x, dy in zip(floats, steep, strict=True))

    wanted = jax.grad(whole, argnums=(0, 1))(weights, slopes)
    second = [np.stack([np.zeros_like(x), x]) for x in (*slopes, *steep)]
    count = len(slopes)
    given = *weights, *second[:count], *rings, *second[count:]
    found = jax.jit(partial(_backward, traced))(jnp.int32(1), *given)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-7)


def test_the_way_forward_writes_what_is_kept():
    subject = network_block_cases(config_of("digits"), (2,), 1e12)[1]
    traced = _trace_block(subject)
    weights, slopes, rest = drawn(subject)
    two = [np.stack([x, x]) for x in (*slopes, *rest)]
    out, kept = jax.jit(partial(_forward, subject))(jnp.int32(0), *weights, *two)
    assert [x.shape for x in out] == [x.shape for x in traced.outputs]
    assert sum(x.size for x in kept) == sum(traced.residual_spec.lengths.values())


def test_both_passes_are_timed(mesh):
    subject = network_block_cases(config_of("digits"), (8,), 1e12)[-1]
    (block,) = time_blocks(mesh, [subject])
    assert (block.key, block.samples) == (subject.key, 1)
    assert 0 < block.forward_s < 1
    assert 0 < block.backward_s < 1
    assert block.kept > 0


def test_blocks_say_nothing_to_other_devices(mesh):
    """Norms sum over the axes of a plan; what they say is priced by itself."""
    seen = []

    def call(weights, slopes, rest):
        seen.append(manual_axes((*BATCH_AXES, *SPATIAL_AXES, "tensor")))
        return weights[0] @ slopes[0]

    eye = jax.ShapeDtypeStruct((8, 8), "float32")
    subject = BlockCase(
        key="a",
        samples=1,
        flops=1e3,
        fn=call,
        weights=(eye,),
        float_inputs=(eye,),
        other_inputs=(),
    )
    time_blocks(mesh, [subject])
    assert len(seen) > 3
    assert set(seen) == {()}
