"""Layouts that are compiled for machines that are not here."""

import pytest

from jaxdist.core.axes import AXES
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.build import build_mesh
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.meshes.targets.compilers import (
    prepare_compilation,
    quiet_stderr,
    target_devices,
)
from jaxdist.meshes.targets.target import parse_target
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import lower_program

TARGETS = ("tpu-v5p:2x2x2", pytest.param("h100:1x8", marks=pytest.mark.cuda))


@pytest.fixture(scope="module", params=TARGETS)
def compile_layout(request):
    """Compile the step of `experiment axis=size ... key=value ...` for a target."""
    target = parse_target(request.param)
    prepare_compilation(target)
    chips = target_devices(target)

    def compile_words(words):
        experiment, *given = words.split()
        sizes = dict.fromkeys(AXES, 1) | {
            axis: int(size)
            for axis, size in (word.split("=") for word in given)
            if axis in AXES
        }
        others = [word for word in given if word.split("=")[0] not in AXES]
        mesh = [f"plan.mesh.{axis}={n}" for axis, n in sizes.items()]
        config = resolve_config(experiment, [*others, *mesh]).config
        describer, plan = StepDescriber(config), config.plan
        layout = build_layout(
            describer.task,
            plan,
            build_mesh(plan, chips),
            describer.shapes,
            describer.trace_cache,
        )
        with quiet_stderr():
            return lower_program(layout).compile(program_options(layout))

    return compile_words
