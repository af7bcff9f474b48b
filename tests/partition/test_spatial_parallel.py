"""Sizes of blocks, and the traffic of halos, before anything is compiled."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.layers import Conv, MaxPool
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.partition import data_parallel, spatial_parallel
from jaxdist.partition.block_padding import BlockPadding, fit_block_padding
from jaxdist.profile.layer_calls import trace_calls
from jaxdist.train.task import Task

SMALL = ModelConfig(width=4)


@functools.cache
def parts(config=SMALL):
    task = Task(model=model_factory(config), optimizer=optax.identity())
    return task.graph, (task.state.params, task.state.stats)


def sized(rows=16, columns=16, config=None, **axes):
    """Calls and sizes of ResNet-8, or of another network, on images of so many rows."""
    channels, config = (1, SMALL) if config is None else (3, config)
    image = jax.ShapeDtypeStruct((8, rows, columns, channels), jnp.float32)
    return fit_block_padding(Plan(mesh=MeshShape(**axes)), *parts(config), image)


@pytest.fixture(scope="module")
def calls():
    return trace_calls(*parts(), jax.ShapeDtypeStruct((8, 16, 16, 1), jnp.float32))[0]


def test_layers_are_read_in_order(calls):
    paths = [call.path for call in calls]
    assert paths[:3] == ["stem.conv", "stem.norm", "block1.conv1"]
    assert paths[-1] == "head.dense"
    assert [call.is_first for call in calls[:2]] == [True, False]


def test_branches_read_the_same_array(calls):
    readers = {call.path: calls[call.input_call].path for call in calls}
    assert readers["block2.shortcut"] == readers["block2.conv1"] == "block2.conv1"
    assert readers["block2.conv2"] == "block2.conv2"


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_rows_that_divide_are_not_padded(devices):
    calls, sizes = sized(spatial_h=devices)
    assert sizes == BlockPadding()
    assert all(call.padded_shape == call.shape for call in calls)


def test_rows_are_padded_to_blocks_of_whole_strides():
    calls, sizes = sized(13, 13, spatial_h=2)
    assert sizes.padded_rows == {
        "spatial_h": 16,
        "spatial_w": 13,
    }  # the whole stride is 4: two blocks of 8
    assert sizes.splits["block3.conv1"].rows == (7, 7)
    laid = {
        call.path: (call.padded_shape[1:3], call.padded_out_shape[1:3])
        for call in calls[:-1]
    }
    assert laid["stem.conv"] == ((16, 13), (16, 13))
    assert laid["block3.conv1"] == ((8, 7), (4, 4))
    assert laid["block3.norm2"] == ((4, 4), (4, 4))


@pytest.mark.parametrize(
    ("name", "rows", "devices", "laid"),
    [
        ("resnet50", 224, 2, 256),
        ("resnet50", 224, 7, 224),
        ("alexnet", 224, 4, 256),
        ("alexnet_two_group", 227, 4, 256),
        ("inception_v3", 299, 2, 320),
        ("inception_v3", 299, 4, 384),
    ],
)
def test_networks_of_imagenet(name, rows, devices, laid):
    _, sizes = sized(rows, rows, ModelConfig(name=name), spatial_h=devices)
    assert sizes.padded_rows.get("spatial_h", rows) == laid


def test_too_fine_names_the_layer_and_what_works():
    with pytest.raises(BadInput, match="spatial_h is too fine") as caught:
        sized(spatial_h=8)
    said = "16 rows fill 4 blocks of 4, the stride behind block3.conv1 is 4"
    assert said in caught.value.values
    assert caught.value.remedy == ("plan.mesh.spatial_h=4",)


def test_the_split_axis_is_named():
    with pytest.raises(BadInput, match="spatial_w is too fine"):
        sized(spatial_w=16)


class Odd(nnx.Module):
    """Layers that split images cannot have."""

    def __init__(self, kind):
        self.conv, self.kind = Conv(1, 1, (3, 3), rngs=nnx.Rngs(0)), kind
        self.pool = MaxPool(3, 3)

    def __call__(self, x):
        if self.kind == "twice":
            return self.conv(self.conv(x)[:, :2])
        return self.conv(x)[:, :1] + self.pool(x)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("twice", "conv is called on images of different sizes"),
        ("strides", "cannot be split along spatial axes"),
    ],
)
def test_what_cannot_be_padded_is_named(kind, says):
    graph, params = nnx.split(nnx.eval_shape(lambda: Odd(kind)))
    image = jax.ShapeDtypeStruct((2, 3, 3, 1), jnp.float32)
    with pytest.raises(BadInput, match=says):
        fit_block_padding(Plan(mesh=MeshShape(spatial_h=2)), graph, (params,), image)


def test_one_device_moves_nothing(calls):
    assert (
        sum(row.payload for row in spatial_parallel.halo_traffic(Plan(), calls, {}))
        == 0
    )


class Reads(nnx.Module):
    """A convolution and a maximum of the same rows."""

    def __init__(self):
        self.stem = Conv(1, 1, (1, 1), rngs=nnx.Rngs(0))
        self.conv = Conv(1, 1, (3, 3), 2, padding="VALID", rngs=nnx.Rngs(0))
        self.pool = MaxPool(3, 2)

    def __call__(self, x):
        x = self.stem(x)
        return self.conv(x) + self.pool(x)


def test_rows_that_two_branches_need_are_fetched_once():
    graph, params = nnx.split(nnx.eval_shape(Reads))
    plan = Plan(mesh=MeshShape(spatial_h=2))
    image = jax.ShapeDtypeStruct((1, 7, 7, 1), jnp.float32)
    calls, _ = fit_block_padding(plan, graph, (params,), image)
    rows = {
        row.layer: row.payload // 4
        for row in spatial_parallel.halo_traffic(plan, calls, {})
    }
    # Forward a row of 7; backward a row of 3 of dy, and the row of 7 of the maximum.
    assert rows == {"stem": 0, "conv": 7 + 3, "pool": 7}


def test_batches_that_divide_are_named():
    with pytest.raises(BadInput, match="does not divide") as caught:
        data_parallel.check_batch_size(Plan(mesh=MeshShape(data=5)), 64)
    assert caught.value.remedy == ("data.batch=60 or data.batch=65",)


def test_samples_divide_over_spatial_axes_where_they_are_dealt_out_over_them():
    dealt = {"spatial_end": "block3", "spatial_end_mode": "samples"}
    plan = Plan(mesh=MeshShape(data=4, spatial_h=2), **dealt)
    data_parallel.check_batch_size(plan, 64)
    with pytest.raises(BadInput, match="does not divide") as caught:
        data_parallel.check_batch_size(plan, 60)
    assert caught.value.remedy == (
        "data.batch=56 or data.batch=64",
        "plan.spatial_end_mode=repeat",
    )
