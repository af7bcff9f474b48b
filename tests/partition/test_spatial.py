"""The spatial rule: too fine a split is refused before anything is compiled."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import model_factory
from jaxdist.partition import data, spatial
from jaxdist.profile.calls import read_calls
from jaxdist.train.task import Task


@pytest.fixture(scope="module")
def calls():
    task = Task(model=model_factory(ModelConfig(width=4)), optimizer=optax.identity())
    image = jax.ShapeDtypeStruct((8, 16, 16, 1), jnp.float32)
    return read_calls(task.graph, (task.state.params, task.state.stats), image)


def test_layers_are_read_in_order(calls):
    paths = [call.path for call in calls]
    assert paths[:3] == ["stem.conv", "stem.norm", "block1.conv1"]
    assert paths[-1] == "head.dense"
    assert [call.first for call in calls[:2]] == [True, False]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_whole_strides_pass(calls, devices):
    spatial.check(Plan(mesh=MeshShape(spatial_h=devices)), calls)


def test_too_fine_names_the_layer_and_what_works(calls):
    with pytest.raises(BadInput, match="spatial_h is too fine") as caught:
        spatial.check(Plan(mesh=MeshShape(spatial_h=8)), calls)
    assert "block3.conv1 has 8 rows and stride 2" in caught.value.values
    assert caught.value.remedy == ("plan.mesh.spatial_h=4",)


def test_the_split_axis_is_named(calls):
    with pytest.raises(BadInput, match="spatial_w is too fine"):
        spatial.check(Plan(mesh=MeshShape(spatial_w=16)), calls)


def test_one_device_moves_nothing(calls):
    assert sum(row.payload for row in spatial.halos(Plan(), calls, {})) == 0


def test_batches_that_divide_are_named():
    with pytest.raises(BadInput, match="does not divide") as caught:
        data.check(Plan(mesh=MeshShape(data=5)), 64)
    assert caught.value.remedy == ("data.batch=60 or data.batch=65",)
