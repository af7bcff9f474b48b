"""What a step and an evaluation for GPUs have that others have not, as it is lowered."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from jaxdist.input import DataConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.evaluate import make_evaluator
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.targets.compiler_options import compiler_options
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.program import trace_train_step


@pytest.fixture(scope="module")
def layout():
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "model.width=4")
    config = resolve_config("digits", words).config
    return StepDescriber(config).layout(config.plan, jax.devices()[:1])


@pytest.mark.parametrize(("platform", "count"), [("gpu", 1), ("tpu", 0), ("cpu", 0)])
def test_sums_over_a_new_state_are_apart_from_its_update(layout, platform, count):
    traced = trace_train_step(replace(layout, platform=platform))
    assert str(traced.jaxpr).count("optimization_barrier") == count


def test_an_evaluation_is_compiled_with_the_options_it_is_given(layout):
    evaluator = Evaluator(
        layout=layout,
        batch_shapes={
            key: jax.ShapeDtypeStruct(x.shape, x.dtype)
            for key, x in layout.batch_shapes.items()
        }
        | {"weight": jax.ShapeDtypeStruct(layout.batch_shapes["id"].shape, "float32")},
        batches=lambda: None,
        compiler_options={"no_such_option": True},
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        evaluator.prepare()


def test_an_evaluation_has_the_options_of_its_platform(layout):
    shapes = {"id": jax.ShapeDtypeStruct((4,), "int32")}
    on_gpu = replace(layout, platform="gpu")
    config = SimpleNamespace(data=DataConfig())
    job = SimpleNamespace(config=config, layout=on_gpu, eval_shapes=shapes)
    assert make_evaluator(job, ()).compiler_options == compiler_options("gpu")


def test_no_program_of_cudnn_is_captured():
    assert "CUDNN" not in compiler_options("gpu")["xla_gpu_enable_command_buffer"]
