"""The network that predictions of steps are tried on."""

import pytest

from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber


@pytest.fixture(scope="session")
def digits():
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    return StepDescriber(resolve_config("digits", words).config)
