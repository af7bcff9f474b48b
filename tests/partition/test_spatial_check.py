"""What is refused mixes positions of split images; what is accepted does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import (
    BatchNorm,
    Conv,
    Dropout,
    GlobalMean,
    GridMean,
    MaxPool,
)
from jaxdist.models.config import ModelConfig
from jaxdist.models.conv_blocks import Chain
from jaxdist.models.registry import (
    image_shape,
    model_factory,
    model_names,
    objective_for,
    takes_tokens,
)
from jaxdist.partition.spatial_layers import check_flax_layers, check_spatial_split

ROWS = Plan(mesh=MeshShape(spatial_h=2))
BOTH = Plan(mesh=MeshShape(spatial_h=2, spatial_w=2))
IMAGE = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32)


class Net(nnx.Module):
    """A convolution, something, and the mean over positions."""

    def __init__(self, something, *, rngs):
        self.conv, self.pool = Conv(3, 4, (3, 3), rngs=rngs), MaxPool(2, 2)
        self.something, self.mean = something, GlobalMean()

    def __call__(self, x):
        return self.mean(self.something(self.pool(self.conv(x))))


def check(something, plan=ROWS):
    network = nnx.eval_shape(lambda: Net(something, rngs=nnx.Rngs(0)))
    check_spatial_split(plan, network, [IMAGE])


FINE = {
    "activation": jax.nn.gelu,
    "softmax over channels": jax.nn.softmax,
    "branches": lambda x: jnp.concatenate([x, x * 2], -1) + 1,
    "channels by a matrix": lambda x: x @ jnp.ones((4, 5)),
    "channels in groups": lambda x: x.reshape(*x.shape[:3], 2, 2).sum(-1),
    "a scale for each channel": lambda x: x * jnp.arange(4.0),
    "a part of the channels": lambda x: x[..., 1:3],
    "channels in halves": lambda x: jnp.split(x, 2, -1)[0],
    "padded channels": lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1))),
    "there and back": lambda x: x.transpose(0, 3, 1, 2).transpose(0, 2, 3, 1),
    "zeros": lambda x: x + jnp.zeros(x.shape),
    "computed again": jax.checkpoint(jax.nn.relu),
}
WRONG = {
    "a mean of rows": lambda x: x - x.mean((1, 2), keepdims=True),
    "a plain convolution": lambda x: jax.lax.conv(
        x.transpose(0, 3, 1, 2), jnp.ones((4, 4, 3, 3)), (1, 1), "SAME"
    ).transpose(0, 2, 3, 1),
    "a plain pooling": lambda x: nnx.max_pool(x, (2, 2), (1, 1), "SAME"),
    "rows in a line": lambda x: x.reshape(2, 1, -1, 4),
    "a sum along rows": lambda x: x.cumsum(1),
    "rows turned": lambda x: x[:, ::-1],
    "rows moved": lambda x: jnp.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0), (0, 0))),
    "half of the rows": lambda x: x[:, :2],
    "attention": lambda x: jnp.einsum("bhwc,bkwc->bhwk", x, x),
    "numbered rows": lambda x: x + jnp.arange(4.0)[:, None, None],
    "rows for columns": lambda x: x.transpose(0, 2, 1, 3),
    "the largest row": lambda x: x * (x.argmax(1, keepdims=True) > 0).astype(x.dtype),
    "row by row": lambda x: jax.lax.map(jnp.sort, x),
}


@pytest.mark.parametrize("name", FINE)
def test_what_treats_positions_alike_is_accepted(name):
    check(FINE[name])
    check(FINE[name], BOTH)


@pytest.mark.parametrize("name", WRONG)
def test_what_mixes_positions_is_refused(name):
    check(WRONG[name], Plan(mesh=MeshShape(data=2)))
    with pytest.raises(BadInput, match="mixes positions") as refused:
        check(WRONG[name])
    assert refused.value.remedy[-1] == "or: plan.mesh.spatial_h=1"


@pytest.mark.parametrize("name", FINE)
def test_what_is_accepted_is_the_same_on_blocks(name):
    """The function of a block is the block of the function."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 4)), jnp.float32)
    whole = FINE[name](x)
    blocks = [FINE[name](part) for part in jnp.split(x, 2, axis=1)]
    np.testing.assert_allclose(jnp.concatenate(blocks, 1), whole, rtol=1e-6)


def test_outputs_with_rows_are_refused():
    class Rows(Net):
        def __call__(self, x):
            return self.conv(x)

    network = nnx.eval_shape(lambda: Rows(jax.nn.relu, rngs=nnx.Rngs(0)))
    with pytest.raises(BadInput, match="no mean over positions ends the split"):
        check_spatial_split(ROWS, network, [IMAGE])


class Gathered(Chain):
    """Something between layers, before which or behind which images are gathered."""

    def __init__(self, something, around, *, rngs):
        blocks = {
            "conv": Conv(3, 4, (3, 3), rngs=rngs),
            "pool": MaxPool(2, 2),
            "something": Each(something),
            "last": Conv(4, 4, (3, 3), rngs=rngs),
            "mean": GlobalMean(),
        }
        super().__init__(blocks)
        self.around, self.side = around, GlobalMean()

    def __call__(self, x):
        before = self.pool(self.conv(x))
        x = self.something(before)
        if self.around == "a layer":
            return self.mean(self.last(before)) + x.mean((1, 2))
        if self.around == "a mean":
            return self.side(before) + self.mean(self.last(x))
        return self.mean(self.last(x) + (before if self.around == "a sum" else 0.0))


class Each(nnx.Module):
    """A function as a block."""

    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


def check_until(block, something, around="", then="repeat"):
    network = nnx.eval_shape(lambda: Gathered(something, around, rngs=nnx.Rngs(0)))
    plan = Plan(mesh=MeshShape(spatial_h=2), spatial_end=block, spatial_end_mode=then)
    check_spatial_split(plan, network, [IMAGE])


SAME = {
    name: WRONG[name]
    for name in WRONG
    if name not in ("rows in a line", "half of the rows")
}


@pytest.mark.parametrize("name", SAME)
def test_positions_may_be_mixed_behind_a_gather(name):
    for block in ("pool", "something"):
        check_until(block, WRONG[name])
    with pytest.raises(BadInput, match="mixes positions"):
        check_until("last", WRONG[name])


@pytest.mark.parametrize("block", ["pool", "something", "last", "mean"])
def test_a_gather_before_any_block_is_accepted(block):
    check_until(block, jax.nn.relu)


@pytest.mark.parametrize(
    ("around", "says"),
    [("a sum", "add on"), ("a layer", "last reads images from before the gather")],
)
def test_a_path_around_the_gather_is_refused(around, says):
    check_until("pool", jax.nn.relu, around)
    with pytest.raises(BadInput, match="mixes positions") as refused:
        check_until("something", jax.nn.relu, around)
    assert says in refused.value.values


def test_a_value_of_all_samples_goes_around_a_gather_and_around_no_exchange():
    check_until("last", jax.nn.relu, "a mean")
    check_until("last", jax.nn.relu, then="samples")
    check_until("something", jax.jit(lambda x: x @ jnp.ones((4, 4))), then="samples")
    with pytest.raises(BadInput, match="a path leads around") as refused:
        check_until("last", jax.nn.relu, "a mean", then="samples")
    assert refused.value.remedy == ("plan.spatial_end_mode=repeat",)


def test_images_that_are_whole_already_are_not_gathered():
    with pytest.raises(BadInput, match="mixes positions") as refused:
        check_until("last", GridMean((4, 4)))
    assert "images are whole already" in refused.value.values


IMAGES = [n for n in model_names() if not takes_tokens(ModelConfig(name=n))]


@pytest.mark.parametrize("name", [n for n in IMAGES if n != "s2vt"])
def test_networks_of_the_registry_are_accepted(name):
    config = ModelConfig(name=name, size="tiny")
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    shape = image_shape(config)
    check_flax_layers(network)
    images = [jax.ShapeDtypeStruct((2, *shape), jnp.float32)]
    check_spatial_split(BOTH, network, images, objective_for(config).is_dense)


def test_a_network_that_classifies_pixels_is_scored_so():
    config = ModelConfig(name="unet2d", size="tiny")
    network = nnx.eval_shape(lambda: model_factory(config)(rngs=nnx.Rngs(0)))
    images = [jax.ShapeDtypeStruct((2, 16, 16, 1), jnp.float32)]
    with pytest.raises(BadInput, match="mixes positions") as refused:
        check_spatial_split(BOTH, network, images)
    assert "its outputs have rows" in refused.value.values


@pytest.mark.parametrize("ours", [BatchNorm(4, rngs=nnx.Rngs(0)), Dropout(0.5)])
def test_layers_of_flax_that_know_one_device_are_refused(ours):
    plain = type(ours).__mro__[1]
    bare = plain(4, rngs=nnx.Rngs(0)) if plain is nnx.BatchNorm else plain(0.5)
    check_flax_layers(Net(ours, rngs=nnx.Rngs(0)))
    with pytest.raises(BadInput, match=f"from jaxdist.layers import {plain.__name__}"):
        check_flax_layers(Net(bare, rngs=nnx.Rngs(0)))
