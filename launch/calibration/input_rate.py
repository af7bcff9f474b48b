"""Measures the bytes of samples that hosts prepare in a second."""

import time
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxdist.core.errors import BadInput, JaxdistWarning

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxdist.launch.config import Experiment

_WARMUP_BATCHES: Final = 4
"""Batches that are not timed: threads start, and some were prefetched."""
_TIMED_BATCHES: Final = 32


def measure_input_rate(config: "Experiment", mesh: "Mesh") -> float | None:
    """Time what a run reads, decodes, shuffles and puts on its devices.

    Every host prepares its part of the batches, all at once and as fast as it can,
    without computing.

    Args:
        config: says which samples, how they are read and by how many threads.
        mesh: all devices lie along its data axis.

    Returns:
        Bytes a second of all hosts together; None, with a warning, where one of them
        cannot read the samples.
    """
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxdist.calibrate.synchronized_timing import max_over_processes
    from jaxdist.input.device_feed import train_feed
    from jaxdist.input.registry import augmentation_of, open_data
    from jaxdist.launch.training.job.batch_spec import feature_spec
    from jaxdist.launch.training.job.job import make_sample_order, objective_of

    # The batch is rounded up: it has to divide over the devices.
    batch = -(-config.data.batch // mesh.size) * mesh.size
    sized = replace(config, data=replace(config.data, batch=batch))
    dtypes = objective_of(config).dtypes
    along = NamedSharding(mesh, P("data"))
    with ExitStack() as stack:
        feed, why = None, "another host cannot read its samples"
        try:
            train, _ = open_data(config.data, feature_spec(config))
            feed = stack.enter_context(
                train_feed(
                    train,
                    make_sample_order(sized, len(train)),
                    dict.fromkeys((*dtypes, "id"), along),
                    dtypes=dtypes,
                    augmentation=augmentation_of(config.data, train),
                    threads=config.data.prefetch_workers,
                )
            )
        except BadInput as error:
            # A machine can be measured without the samples of the experiment.
            why = error.what
        # All hosts measure, or none: a host alone in a collective would wait for ever.
        missing = max_over_processes(mesh, np.array([float(feed is None)]))()[0]
        if feed is None or missing:
            warnings.warn(f"input not measured: {why}", JaxdistWarning, stacklevel=2)
            return None
        for _ in range(_WARMUP_BATCHES):
            next(feed)
        start = time.perf_counter()
        for _ in range(_TIMED_BATCHES):
            one = next(feed)
        took = time.perf_counter() - start
        size = sum(x.nbytes for x in one.values())
        # A step waits for the slowest host.
        slowest = float(max_over_processes(mesh, np.array([took]))()[0])
        return _TIMED_BATCHES * size / slowest
