"""Searches for a plan of one's own network, and the mesh that they leave open."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts

OWN = '''
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxdist import MeshShape, Plan, object_reference
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Conv, GlobalMean, Linear, MaxPool
from jaxdist.models import Chain, ModelConfig


class UNet(nnx.Module):
    """Its upsampling mixes neighbouring rows outside of our layers."""

    def __init__(self, *, rngs):
        self.down, self.pool = Conv(1, 8, (3, 3), rngs=rngs), MaxPool(2, 2)
        self.low, self.up = (Conv(n, 8, (3, 3), rngs=rngs) for n in (8, 16))
        self.mean, self.head = GlobalMean(), Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        high = jax.nn.relu(self.down(x))
        low = jax.nn.relu(self.low(self.pool(high)))
        low = jax.image.resize(low, high.shape, "bilinear")
        return self.head(self.mean(self.up(jnp.concatenate([high, low], -1))))


class Turned(Chain):
    """Blocks, of which the second turns images."""

    def __init__(self, *, rngs):
        class Turn(nnx.Module):
            def __call__(self, x):
                return x.swapaxes(1, 2)

        first, second = (Conv(n, 8, (3, 3), rngs=rngs) for n in (1, 8))
        super().__init__({"first": first, "turn": Turn(), "second": second,
                          "mean": GlobalMean(), "head": Linear(8, 2, rngs=rngs)})


def samples():
    draw = np.random.default_rng(0)
    parts = [(draw.normal(size=(n, 16, 16, 1)), draw.integers(0, 2, n)) for n in (96, 24)]
    return tuple({"image": x.astype(np.float32), "label": y} for x, y in parts)


def of(net, mesh):
    data = DataConfig(name=object_reference(samples), batch=24)
    model = ModelConfig(name=object_reference(net))
    return Experiment(name="own", data=data, model=model, plan=Plan(mesh=mesh))


def unet() -> Experiment:
    return of(UNet, MeshShape(data=8))


def turned() -> Experiment:
    return of(Turned, MeshShape(data=2, spatial_h=2))
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


def search(experiment, devices, *overrides):
    query = PlanQuery(
        experiment=str(experiment),
        overrides=overrides,
        cluster="cpu-fake",
        devices=(devices,),
    )
    return search_layouts(query)


@pytest.mark.parametrize("name", ["unet", "turned"])
def test_a_split_that_a_run_refuses_is_not_ranked(file, job, tmp_path, name):
    experiment = f"{file}:{name}"
    found = search(experiment, 2)
    assert found.ranking.plans
    assert all(one.plan.mesh.spatial_shards == 1 for one in found.ranking.plans)
    lost = {lost.title: lost.reason for _, lost in found.ranking.rejected}
    assert lost["spatial_h 2"].startswith("the network mixes positions")
    # The same refusal, word for word, for who asks for that split alone.
    with pytest.raises(BadInput, match="no layout can be run") as caught:
        search(experiment, 2, "plan.mesh.spatial_h=2")
    words = ("plan.mesh.spatial_h=2", "plan.mesh.data=1", f"run.dir={tmp_path}")
    code, _, err = job.call("train", experiment, *words)
    assert code == 2
    assert "the network mixes positions" in err
    assert "the network mixes positions" in caught.value.values


def test_flax_layers_that_a_run_refuses_are_no_plan(tmp_path):
    path = tmp_path / "own.py"
    text = OWN.replace(
        "self.mean, self.head =",
        "self.norm = nnx.BatchNorm(8, rngs=rngs)\n        self.mean, self.head =",
    )
    path.write_text(text)
    with pytest.raises(BadInput, match="sees its own device alone"):
        search(f"{path}:unet", 2)


def test_the_mesh_of_the_experiment_holds_nothing_while_another_is_searched():
    # digits is of data 4: 62 samples are for other meshes than its own.
    with pytest.raises(BadInput, match="does not divide over the mesh"):
        resolve_config("digits", ["data.batch=62"])
    found = search("digits", 2, "data.batch=62")
    assert found.ranking.plans[0].plan.mesh.devices == 2
    # What is typed holds.
    with pytest.raises(BadInput, match="does not divide over the mesh"):
        search("digits", 2, "data.batch=62", "plan.mesh.data=4")


def test_an_end_of_the_split_may_be_typed_for_a_mesh_that_is_searched(file):
    # The experiment's own mesh splits no images.
    words = ("plan.spatial_end=flatten", "plan.mesh.spatial_w=2")
    found = search("alexnet", 2, "model.size=tiny", "data.batch=8", *words)
    assert {one.plan.spatial_end for one in found.ranking.plans} == {"flatten"}
    free = search("alexnet", 2, "model.size=tiny", "data.batch=8", words[0])
    assert free.ranking.plans
    with pytest.raises(BadInput, match="no images are split"):
        search("alexnet", 2, words[0], "plan.mesh.spatial_h=1")


def test_a_batch_that_no_step_of_a_run_could_fill_is_no_plan():
    with pytest.raises(BadInput, match="fewer training samples than a batch"):
        search("digits", 2, "data.batch=4000")


def test_the_plan_that_is_written_is_one_that_a_run_takes(file, job, tmp_path):
    path, experiment = tmp_path / "plan.json", f"{file}:unet"
    words = ("--cluster", "cpu-fake", "--devices", "2", "-o", path)
    assert job.call("plan", experiment, *words)[0] == 0
    assert Plan.from_json(path.read_text()).mesh.devices == 2
    words = ("--plan", path, "epochs=0.25", f"run.dir={tmp_path}")
    code, _, err = job.call("train", experiment, *words)
    assert code == 0, err


@pytest.mark.slow
def test_a_unet_is_cut_where_little_is_handed_on_and_trained_so(job, tmp_path):
    path, experiment = tmp_path / "plan.json", "unet2d"
    small = ("model.size=tiny", "data.samples=64")
    words = ("--cluster", "testbed", "--devices", "2", "-o", path)
    assert job.call("plan", experiment, *small, *words)[0] == 0
    plan = Plan.from_json(path.read_text())
    assert plan.mesh.pipe == 2
    # There the next stage gets the features of one level, and no skip.
    assert plan.pipe.cuts in (("down1",), ("head",))
    words = ("--plan", path, "epochs=0.25", f"run.dir={tmp_path}")
    code, _, err = job.call("train", experiment, *small, *words)
    assert code == 0, err
