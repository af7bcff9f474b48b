"""The network that predictions of steps are tried on."""

import pytest

from jaxdist.launch.config.resolve import resolve
from jaxdist.launch.training.job.abstract_step import Subject


@pytest.fixture(scope="session")
def digits():
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    return Subject(resolve("digits", words).config)
