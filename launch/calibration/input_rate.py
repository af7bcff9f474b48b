"""Supplying: the bytes of samples that hosts make ready in a second, measured."""

import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxdist.core.errors import BadInput, JaxdistWarning

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxdist.input.device_feed import Feed
    from jaxdist.launch.config import Experiment

_WARMUP_BATCHES: Final = 4
"""Batches that are not timed: threads begin, and some were made ahead."""
_TIMED_BATCHES: Final = 32


def measure_input_rate(config: "Experiment", mesh: "Mesh") -> float | None:
    """Time what a run reads, decodes, shuffles and puts on its devices.

    Every host makes its part of the batches ready, all at once and as fast as it can,
    and nobody computes.

    Args:
        config: says which samples, how they are read and by how many threads.
        mesh: all devices lie along its data axis.

    Returns:
        Bytes a second of all hosts together; None, with a remark, where one of them
        cannot read the samples.
    """
    from jaxdist.calibrate.synchronized_timing import max_over_processes

    with ExitStack() as stack:
        feed, why = None, "another host cannot read its samples"
        try:
            feed = stack.enter_context(_open_feed(config, mesh))
        except BadInput as error:
            why = error.what
        # All of them measure, or none: they meet in what follows.
        missing = max_over_processes(mesh, np.array([float(feed is None)]))()[0]
        if feed is None or missing:
            warnings.warn(f"input not measured: {why}", JaxdistWarning, stacklevel=2)
            return None
        took, size = _time_batches(feed)
        return (
            _TIMED_BATCHES
            * size
            / float(max_over_processes(mesh, np.array([took]))()[0])
        )


def _time_batches(feed: "Feed") -> tuple[float, int]:
    """Return the seconds of some batches, and the bytes of one."""
    for _ in range(_WARMUP_BATCHES):
        batch = next(feed)
    start = time.perf_counter()
    for _ in range(_TIMED_BATCHES):
        batch = next(feed)
    return time.perf_counter() - start, sum(x.nbytes for x in batch.values())


def _open_feed(config: "Experiment", mesh: "Mesh") -> "Feed":
    """Return the batches of a run, in a batch that divides over the devices.

    Raises:
        BadInput: no such samples, or fewer than a batch has.
    """
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxdist.input.device_feed import train_feed
    from jaxdist.input.registry import open_data
    from jaxdist.launch.training.job.batch_spec import feature_spec
    from jaxdist.launch.training.job.job import make_sample_order
    from jaxdist.models.registry import objective_for

    train, _ = open_data(config.data, feature_spec(config))
    batch = -(-config.data.batch // mesh.size) * mesh.size
    sized = replace(config, data=replace(config.data, batch=batch))
    dtypes = objective_for(config.model).dtypes
    along = NamedSharding(mesh, P("data"))
    return train_feed(
        train,
        make_sample_order(sized, len(train)),
        dict.fromkeys((*dtypes, "id"), along),
        dtypes=dtypes,
        max_shift=config.data.shift,
        threads=config.data.prefetch_workers,
    )
