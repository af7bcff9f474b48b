"""Laid: the step of a run that is laid out on devices, described for the oracle."""

from math import prod

import numpy as np

from jaxdist.launch.described import held
from jaxdist.launch.job import Job, network_of
from jaxdist.launch.specimen import bind_noise
from jaxdist.oracle.case import Case
from jaxdist.profile.read import read_profile
from jaxdist.train.objective import cast


def case_of(job: Job) -> Case:
    """Describe the step that a job runs; nothing is computed.

    Args:
        job: what runs.
    """
    layout, config = job.layout, job.config
    task, batch = layout.task, config.data.batch
    profile = read_profile(
        network_of(task),
        cast(task.objective.arguments(layout.shapes), task.dtype),
        name=config.model.name,
        prepare=lambda network: bind_noise(network, batch),
    )
    arrays = layout.shapes.values()
    return Case(
        profile=profile,
        plan=layout.plan,
        ledgers=layout.ledgers,
        microbatches=task.microbatches,
        stages=layout.pipe.stages.blocks if layout.pipe else (),
        dtype=np.dtype(task.dtype).name,
        held=held(layout),
        batch_bytes=sum(prod(x.shape) * x.dtype.itemsize for x in arrays),
    )
