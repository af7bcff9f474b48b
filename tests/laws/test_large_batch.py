"""Laws of large batches: what a step of the recipe is, on every layout, in float64."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.layers import BatchNorm
from jaxdist.models.config import ModelConfig
from jaxdist.train.nonfinite import skip_nonfinite
from jaxdist.train.optimizers import OptimConfig, make_optimizer
from jaxdist.train.program import compile_program

pytestmark = [pytest.mark.laws, pytest.mark.timeout(600)]

PLAIN = ModelConfig(name="vgg16", size="tiny", dropout=0.3)
"""No layer of it couples samples."""
NORMED = ModelConfig(width=4, dropout=0.3)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def start(parts):
    """Return a task, a state of random numbers and a batch of 16."""

    def draw(config, **how):
        task = replace(parts.make_task(config, jnp.float64), **how)
        return task, parts.make_state(task), parts.make_batch(config, jnp.float64, 16)

    return draw


@pytest.fixture
def step(parts):
    """Compile a layout's step, audit included, and run it once."""

    def run(task, axes, state, batch):
        where = parts.layout_of(task, axes, batch)
        program = compile_program(where)
        places = jax.tree.map(lambda x: x.sharding, where.state)
        own = jax.device_put(jax.tree.map(np.array, state), places)
        laid = jax.device_put(batch, program.batch_shardings)
        new, metrics = program.compiled_step(own, laid)
        parts.assert_copies_equal(new)
        return new, metrics

    return run


@pytest.mark.parametrize(
    "axes",
    [
        dict(data=2, spatial_h=2, tensor=2, replicated_axes=("tensor",)),
        dict(data=2, fsdp=2, tensor=2),
        dict(fsdp=2, zero=1),
        *(
            pytest.param(
                dict(data=2, spatial_h=2, spatial_end="pool1", spatial_end_mode=then),
                marks=pytest.mark.slow,
            )
            for then in ("repeat", "samples")
        ),
    ],
)
def test_microbatches_make_the_step_of_the_whole_batch(axes, parts, start, step):
    task, state, batch = start(PLAIN)
    want = jax.jit(partial(parts.one_device, task))(state, batch)
    new, metrics = step(replace(task, microbatches=4), axes, state, batch)
    parts.assert_leaves_equal((new.params, new.stats, new.opt, metrics), want, 1e-9)


def test_microbatches_of_a_network_with_norms_are_equal_on_every_layout(start, step):
    """Their statistics are a microbatch's: of the samples that come together."""
    task, state, batch = start(NORMED, microbatches=2)
    # Two devices take the first half of their own half each, one takes the first half.
    order = np.arange(16).reshape(2, 2, 4).transpose(1, 0, 2).reshape(-1)
    mixed = {key: value[order] for key, value in batch.items()}
    one, alone = step(task, dict(data=1), state, mixed)
    two, other = step(task, dict(data=2, spatial_h=2), state, batch)
    np.testing.assert_allclose(alone.loss, other.loss, rtol=1e-12)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


class Apart(BatchNorm):
    """The norm of a reference: groups of samples, each with statistics of its own."""

    groups = 1

    def __call__(self, x):
        each = x.reshape(self.groups, -1, *x.shape[1:])
        dims = tuple(range(1, each.ndim - 1))
        mean, var = each.mean(dims, keepdims=True), each.var(dims, keepdims=True)
        for running, batch in ((self.mean, mean), (self.var, var)):
            new = jax.lax.stop_gradient(batch).reshape(self.groups, -1).mean(0)
            running.set_value(0.9 * running[...] + 0.1 * new)
        y = (each - mean) / jnp.sqrt(var + self.epsilon)
        return (y * self.scale[...] + self.bias[...]).reshape(x.shape)


@pytest.mark.parametrize(
    ("axes", "group"),
    [
        (dict(data=4, spatial_h=2), 2),
        (dict(data=2, fsdp=2, spatial_h=2), 2),
        (dict(data=4, fsdp=2, tensor=2), 4),
        (dict(data=2, spatial_h=2, spatial_end="block2"), 1),
        *(
            pytest.param(axes, group, marks=pytest.mark.slow)
            for axes, group in (
                (dict(data=4), 2),
                (dict(data=4), 1),
                (dict(data=4, spatial_h=2, spatial_end="block3"), 2),
                (
                    dict(
                        data=4,
                        spatial_h=2,
                        spatial_end="block3",
                        spatial_end_mode="samples",
                    ),
                    2,
                ),
            )
        ),
    ],
)
def test_groups_of_replicas_normalise_as_groups_of_samples(
    axes, group, parts, start, step
):
    config = replace(NORMED, norm="replica", norm_group=group)
    task, state, batch = start(config)

    def apart(rngs):
        network = task.model(rngs=rngs)
        for _, layer in nnx.iter_modules(network):
            if isinstance(layer, BatchNorm):
                object.__setattr__(layer, "__class__", Apart)
                layer.groups = axes["data"] * axes.get("fsdp", 1) // group
        return network

    reference = replace(task, model=apart)
    want = jax.jit(partial(parts.one_device, reference))(state, batch)
    new, metrics = step(task, axes, state, batch)
    parts.assert_leaves_equal((new.params, new.stats, new.opt, metrics), want, 1e-9)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("sgd", dict(fsdp=2, tensor=2)),
        ("lars", dict(data=2, fsdp=2, zero=1)),
        pytest.param("lars", dict(fsdp=2, tensor=2), marks=pytest.mark.slow),
        ("lamb", dict(data=2, fsdp=2, tensor=2)),
        ("muon", dict(fsdp=2, tensor=2)),
        pytest.param("muon", dict(data=2, fsdp=2, zero=1), marks=pytest.mark.slow),
        pytest.param("muon", dict(spatial_h=2, tensor=2), marks=pytest.mark.slow),
    ],
)
def test_shards_are_clipped_scaled_and_moved_as_whole_leaves(
    name, axes, assert_equal_one_device
):
    config = OptimConfig(name=name, weight_decay=0.01, clip=0.01, skip_nonfinite=1)
    optim = make_optimizer(config, lambda step: 0.01)
    assert_equal_one_device(NORMED, axes, optimizer=optim)


def test_a_pipeline_refuses_an_optimizer_of_several_parts(parts, start):
    optim = make_optimizer(OptimConfig(name="muon"), lambda step: 0.01)
    task, _, batch = start(NORMED, optimizer=optim)
    with pytest.raises(BadInput, match="several optimizers") as caught:
        parts.layout_of(task, dict(pipe=2), batch)
    assert caught.value.remedy[0] == "optim.name=adamw"


def test_groups_that_the_mesh_does_not_have_are_refused(start, step):
    task, state, batch = start(replace(NORMED, norm="replica", norm_group=3))
    with pytest.raises(BadInput, match="do not divide into groups") as caught:
        step(task, dict(data=4), state, batch)
    assert caught.value.remedy == ("model.norm_group=2",)


def test_the_average_is_the_same_on_every_layout(parts, start, step):
    task, state, batch = start(NORMED, average=0.99)
    params, stats, _, _ = jax.jit(partial(parts.one_device, task))(state, batch)
    new, _ = step(task, dict(data=2, spatial_h=2), state, batch)
    share = 1 - 2 / 11
    want = jax.tree.map(
        lambda a, x: a + share * (x - a),
        state.average,
        {"params": params, "stats": stats},
    )
    for a, b in zip(jax.tree.leaves(new.average), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


FINITE_LAYOUTS = [dict(data=2, fsdp=2), dict(data=2, tensor=2), dict(spatial_h=2)]


@pytest.mark.parametrize("axes", FINITE_LAYOUTS)
def test_one_bad_sample_is_seen_on_every_device(start, step, axes):
    task, state, batch = start(NORMED, optimizer=optax.sgd(0.1))
    batch["image"][11, 3, 5] = np.nan
    _, metrics = step(task, axes, state, batch)
    assert all(np.isnan(shard.data) for shard in metrics.loss.addressable_shards)


@pytest.mark.parametrize("axes", FINITE_LAYOUTS)
def test_a_state_that_overflows_is_seen_where_it_lies(start, step, axes):
    """The gradient is finite, and the step along it is too long for the dtype."""
    task, state, batch = start(NORMED, optimizer=optax.scale(1e308 * 1e3))
    _, metrics = step(task, axes, state, batch)
    assert any(np.isinf(shard.data) for shard in metrics.loss.addressable_shards)
    task, state, batch = start(NORMED, optimizer=optax.sgd(0.1))
    _, metrics = step(task, axes, state, batch)
    assert all(np.isfinite(shard.data) for shard in metrics.loss.addressable_shards)


def test_one_bad_sample_stops_every_device(start, step):
    """The other devices see finite gradients of their own; none of them moves."""
    optimizer = skip_nonfinite(optax.sgd(0.1, momentum=0.9))
    task, state, batch = start(NORMED, optimizer=optimizer, average=0.99)
    batch["image"][11, 3, 5] = np.nan
    new, metrics = step(task, dict(data=2, fsdp=2), state, batch)
    assert np.isnan(metrics.loss)
    assert int(new.step) == int(state.step) + 1
    same = partial(jax.tree.map, np.testing.assert_array_equal)
    same(new.params, state.params)
    same(new.stats, state.stats)
    same(new.average, state.average)
    same(new.opt.inner, state.opt.inner)
    for shard in new.opt.consecutive.addressable_shards:
        assert int(shard.data) == 1
