"""Networks of one's own by command: frozen parameters, counters, streams, odd kinds."""

import jax
import numpy as np
import pytest

import jaxdist
from jaxdist.train.state import named_leaves

NETWORK = '''
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxdist import MeshShape, Plan, object_reference
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Linear
from jaxdist.models import ModelConfig


class Counter(nnx.Variable):
    """Counts calls."""


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.base = Linear(64, 16, rngs=rngs)
        self.out = Linear(16, 3, rngs=rngs)
        self.unused = Linear(7, 5, rngs=rngs)
        self.turn = nnx.Param(jnp.full(16, 1 + 0.1j))
        self.whole = nnx.Param(jnp.ones(16, jnp.int32))
        self.none = nnx.Param(jnp.zeros((0, 4)))
        self.calls, self.rngs = Counter(jnp.zeros((), jnp.int32)), rngs

    def __call__(self, x):
        x = nnx.relu(self.base(x.reshape(len(x), -1)))
        x = (x * self.turn[...]).real + self.whole[...]
        self.calls[...] += 1
        return self.out(x)


def data():
    def part(n):
        draw = np.random.default_rng(n)
        label = np.arange(n) % 3
        image = draw.random((n, 8, 8, 1)) * 0.3 + label[:, None, None, None] / 3
        return {"image": image.astype(np.float32), "label": label}

    return part(64), part(32)


def own() -> Experiment:
    return Experiment(name="own", epochs=1, model=ModelConfig(name=object_reference(Net)),
        data=DataConfig(name=object_reference(data), batch=16, shift=0),
        plan=Plan(mesh=MeshShape(data=2)))
'''


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "net.py"
    path.write_text(NETWORK)
    return path


def test_a_frozen_run_goes_on_and_is_loaded(network, job, tmp_path):
    words = "train", str(network), f"run.dir={tmp_path}", "optim.frozen=base.*"
    words = *words, "optim.ema=0.5", "optim.name=adamw", "optim.lr=0.01"
    for epochs, calls in ((1, 4), (2, 8)):
        code, _, err = job.call(*words, f"epochs={epochs}", "--change")
        assert code == 0, err
        model, state = jaxdist.load(tmp_path / "own")
        assert named_leaves(state.stats)["calls"] == calls
    kept, other = named_leaves(state.stats), named_leaves(state.params)
    assert {"base/kernel", "whole", "none", "rngs/default/key"} <= kept.keys()
    assert {"out/kernel", "turn", "unused/kernel"} <= other.keys()
    # The weights that were drawn are those that it ends with.
    code, _, err = job.call(*words, "epochs=0.1", "run.name=short", "optim.lr=0")
    assert code == 0, err
    _, first = jaxdist.load(tmp_path / "short")
    np.testing.assert_array_equal(
        named_leaves(first.stats)["base/kernel"], kept["base/kernel"]
    )
    assert np.any(named_leaves(first.params)["out/kernel"] != other["out/kernel"])
    with jax.numpy_dtype_promotion("standard"):  # as it is outside of tests
        assert np.isfinite(model(np.ones((2, 8, 8, 1), np.float32))).all()
    assert job.call("eval", str(tmp_path / "own"))[0] == 0
    assert job.call("ckpt", "verify", str(tmp_path / "own"))[0] == 0


@pytest.mark.parametrize("mesh", [{"data": 1, "fsdp": 2}, {"data": 2, "fsdp": 2}])
def test_odd_parameters_train_in_shards(mesh, network, job, tmp_path):
    axes = (f"plan.mesh.{axis}={size}" for axis, size in mesh.items())
    code, _, err = job.call("train", str(network), f"run.dir={tmp_path}", *axes)
    assert code == 0, err
    _, state = jaxdist.load(tmp_path / "own")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    ("frozen", "said"),
    [
        ("bas.*", "did you mean|optim.frozen=base"),
        ("*", "nothing is left to train"),
        ("whole", "no parameter is at whole"),
        ("base/kernel", "no parameter is at base/kernel"),
    ],
)
def test_patterns_that_cannot_be(frozen, said, network, job, tmp_path):
    words = f"run.dir={tmp_path}", f"optim.frozen={frozen}"
    code, _, err = job.call("train", str(network), *words)
    assert code == 2
    assert any(each in err for each in said.split("|")), err
    assert not list(tmp_path.iterdir())


def test_a_step_that_changes_the_form_of_a_variable(job, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        NETWORK.replace("self.calls[...] += 1", "self.calls.set_value(jnp.zeros(3))")
    )
    code, _, err = job.call("train", str(path), f"run.dir={tmp_path}/runs")
    assert (code, "a step changes the form of calls" in err) == (2, True), err
    assert not (tmp_path / "runs").exists()
