"""When a pipeline's devices send: behind all works of a tick, where nothing forbids it."""

from dataclasses import replace

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.train.pipeline.sync_gradients import sends_after_works

SYNC, ZERO_BUBBLE = ("forward", "backward"), ("forward", "backward", "weights")


@pytest.mark.parametrize(
    ("schedule", "platform", "kinds", "behind"),
    [
        ("1f1b", "cpu", SYNC, True),
        ("1f1b", "gpu", SYNC, False),
        ("zb-h1", "cpu", ZERO_BUBBLE, True),
        ("zb-h1", "tpu", ZERO_BUBBLE, True),
        # Sums of replicas are no works: nothing would order them and what is sent.
        ("pipedream", "cpu", SYNC, False),
        ("pipedream-2bw", "cpu", SYNC, False),
    ],
)
def test_what_is_sent_waits_for_works(schedule, platform, kinds, behind):
    words = ("optim.accumulate=4", "plan.mesh.spatial_h=1")
    config = resolve_config("digits", words).config
    plan = Plan(
        mesh=MeshShape(pipe=2), pipe=PipelineConfig(schedule=schedule), microbatches=4
    )
    layout = StepDescriber(config).layout(plan)
    assert sends_after_works(replace(layout, platform=platform), kinds) == behind
