"""A profiled step on two devices: its terms are those of its plan and add up to it."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.core.step_breakdown import StepBreakdown
from jaxdist.launch.training.profiler import instruction_terms, write_step_breakdown
from jaxdist.layers import Linear
from jaxdist.meshes.build import build_mesh
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import objective_for
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import compile_program, initial_state
from jaxdist.train.task import Task

STEPS = 4


class Mlp(nnx.Module):
    def __init__(self, *, rngs):
        self.first, self.last = Linear(64, 32, rngs=rngs), Linear(32, 10, rngs=rngs)

    def __call__(self, image):
        x = image.reshape(image.shape[0], -1)
        return self.last(jax.nn.relu(self.first(x)))


@pytest.fixture(scope="module")
def program():
    return compiled(Plan(mesh=MeshShape(data=2)))


def compiled(plan):
    task = Task(
        model=Mlp, optimizer=optax.sgd(0.1), objective=objective_for(ModelConfig())
    )
    mesh = build_mesh(plan, jax.devices()[:2])
    return compile_program(build_layout(task, plan, mesh, shapes()))


def shapes():
    batch = draw()
    return {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in batch.items()}


def draw():
    rng = np.random.default_rng(0)
    return {
        "image": rng.random((256, 8, 8, 1), np.float32),
        "label": rng.integers(0, 10, 256, np.int32),
        "id": np.arange(256, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def found(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    state = initial_state(program.layout)
    batch = jax.device_put(draw(), dict(program.batch_shardings))
    with jax.profiler.trace(str(folder / "profile")):
        for _ in range(STEPS):
            state, metrics = program.run(1, state, batch)
        jax.block_until_ready(metrics)
    assert write_step_breakdown(program, folder / "profile", 0.0, folder / "m.json")
    return StepBreakdown.from_json((folder / "m.json").read_text())


def test_both_devices_are_seen_in_every_step(found):
    assert [(one.device, one.steps) for one in found.devices] == [(0, 4), (1, 4)]


def test_terms_are_those_of_the_plan_and_of_devices(found):
    for one in found.devices:
        known = {"compute", "update", "waiting", "other", "between steps"}
        moved = set(one.terms_s) - known
        assert moved == {"all-reduce, data"}
        assert all(seconds >= 0 for seconds in one.terms_s.values())
        assert one.terms_s["compute"] > 0
        assert one.terms_s["update"] > 0


def test_layers_add_up_to_computing(found):
    for one in found.devices:
        total = sum(pair.both for pair in one.layers_s.values())
        assert total == pytest.approx(one.terms_s["compute"])
        assert one.layers_s["first"].forward > 0
        assert one.layers_s["first"].backward > 0


def test_what_packs_gradients_is_no_layers(program):
    packed = ReductionConfig(algorithm="int8", min_compressed_elements=0)
    lossy = compiled(Plan(mesh=MeshShape(data=2), reduce=packed))
    for one, packs in ((program, False), (lossy, True)):
        parts = instruction_terms(one).values()
        assert ("packing" in {part.term for part in parts}) == packs
        assert {"first", "last"} <= {part.layer for part in parts}


def test_a_trace_of_before_is_not_read_again(program, found, tmp_path):
    assert not write_step_breakdown(program, tmp_path, 0.0, tmp_path / "m.json")
    assert not (tmp_path / "m.json").exists()
