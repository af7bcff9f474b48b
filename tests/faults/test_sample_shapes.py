"""Samples, network and objective that do not fit each other are refused by shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.train.build_layout import least_image_size
from jaxdist.train.objective import Classification, NextToken, Objective, Regression

LINE = """
import numpy as np
from flax import nnx
from jaxdist.core.object_reference import object_reference
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.models import ModelConfig
from jaxdist.train import Regression

class Line(nnx.Module):
    objective = Regression()
    def __init__(self, *, rngs):
        self.out = nnx.Linear(2, 1, rngs=rngs)
    def __call__(self, x):
        return self.out(x)

def part(n, is_flat, seed):
    x = np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)
    y = 2 * x[:, 0] - x[:, 1]
    return {"image": x, "target": y if is_flat else y[:, None]}

def flat():
    return part(64, True, 0), part(16, True, 1)

def column():
    return part(64, False, 0), part(16, False, 1)

def line(data):
    return Experiment(name="line", epochs=1,
        data=DataConfig(name=object_reference(data), batch=32, shift=0),
        model=ModelConfig(name=object_reference(Line)), plan=Plan(mesh=MeshShape(data=1)))

def with_flat() -> Experiment:
    return line(flat)

def with_column() -> Experiment:
    return line(column)
"""


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "line.py").write_text(LINE)
    return tmp_path / "line.py"


@pytest.mark.parametrize("devices", [1, 2])
def test_targets_without_a_column_are_refused_before_anything_is_written(
    lines, job, tmp_path, devices
):
    words = f"run.dir={tmp_path}/runs", "run.name=a", f"plan.mesh.data={devices}"
    code, _, said = job.call("train", f"{lines}:with_flat", *words)
    assert code == 2
    assert "a sample's outputs are [1], its target is []" in said
    assert "target[:, None]" in said
    assert not (tmp_path / "runs").exists()


def test_targets_with_a_column_are_trained_on(lines, job, tmp_path):
    words = f"run.dir={tmp_path}/runs", "run.name=b"
    code, _, said = job.call("train", f"{lines}:with_column", *words)
    assert code == 0, said


@pytest.mark.parametrize(
    ("objective", "outputs", "targets"),
    [
        (Classification(), (3,), {"label": (1,)}),
        (Classification(), (3,), {"label": (3,)}),
        (Classification(), (4, 4, 3), {"label": (4, 4)}),
        (Classification(), (4, 4, 3), {"label": ()}),
        (Regression(), (1,), {"target": ()}),
        (Regression(), (), {"target": ()}),
        (Regression(), (3,), {"target": (1,)}),
        (NextToken(), (5, 7), {"target": (4,)}),
        (NextToken(), (7,), {"target": ()}),
    ],
)
def test_outputs_of_another_form_are_refused(objective, outputs, targets):
    with pytest.raises(BadInput, match="rule"):
        objective.check_outputs(*_shapes(objective, outputs, targets))


def _shapes(objective, outputs, targets, samples=8):
    dtypes = objective.dtypes
    return jax.ShapeDtypeStruct((samples, *outputs), jnp.float32), {
        key: jax.ShapeDtypeStruct((samples, *shape), dtypes[key])
        for key, shape in targets.items()
    }


SIDES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@settings(max_examples=60)
@given(
    outputs=SIDES,
    target=SIDES,
    objective=st.sampled_from([Classification(), Regression(), NextToken()]),
)
def test_one_loss_a_sample_and_nothing_broadcast_or_a_refusal(
    outputs, target, objective
):
    if isinstance(objective, Regression):
        fits = outputs == target and len(target) == 1
    else:
        places = 1 if isinstance(objective, NextToken) else 0
        fits = len(target) == places and outputs != () and outputs[:-1] == target
    shapes = _shapes(objective, outputs, {objective.targets[0][0]: target}, samples=5)
    if fits:
        objective.check_outputs(*shapes)
        assert jax.eval_shape(objective.losses, *shapes).shape == (5,)
        return
    with pytest.raises(BadInput) as refused:
        objective.check_outputs(*shapes)
    assert all((refused.value.rule, refused.value.values, refused.value.remedy))


class Whole(Objective):
    """An objective of one's own that forgets the samples."""

    def losses(self, outputs, batch):
        return outputs.mean()

    def correct(self, outputs, batch):
        return outputs > 0


def test_an_objective_of_ones_own_has_a_loss_for_each_sample():
    own = Whole(inputs=(("image", "float32"),), targets=(("target", "float32"),))
    shapes = _shapes(own, (2,), {"target": (2,)})
    with pytest.raises(BadInput, match=r"losses of 8 samples are \[\]"):
        own.check_outputs(*shapes)


@pytest.mark.parametrize("size", [1, 8])
def test_images_that_are_too_small_are_told_the_least_size(job, tmp_path, size):
    words = "data.name=synthetic", f"data.size={size}", "data.batch=8"
    code, _, said = job.call(
        *("train", "googlenet", *words, "model.classes=3", "data.shift=0"),
        *(f"run.dir={tmp_path}/runs", "plan.mesh.data=1", "plan.mesh.spatial_h=1"),
    )
    assert code == 2, said
    assert "data.size=" in said
    assert not (tmp_path / "runs").exists()


def test_a_prediction_is_refused_as_a_run_is():
    words = "data.name=synthetic", "data.size=8", "data.batch=8", "model.classes=3"
    config = resolve_config("googlenet", words).config
    with pytest.raises(BadInput, match=r"data\.size="):
        StepDescriber(config)


def test_the_least_size_is_found_by_the_network_itself():
    conv = nnx.Conv(1, 2, (7, 7), padding="VALID", rngs=nnx.Rngs(0))

    def trace(inputs):
        if 0 in jax.eval_shape(conv, *inputs).shape:
            raise ValueError("nothing left")

    image = jax.ShapeDtypeStruct((2, 3, 3, 1), np.float32)
    assert least_image_size([image], trace) == 7
