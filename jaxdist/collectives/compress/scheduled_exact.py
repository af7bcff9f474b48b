"""Step lists: the exact sum by an algorithm of our choice, not the backend's.

permutes   those of the list (`jaxdist.collectives.algorithms`)
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
from jax import lax

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.compress.method import (
    Axes,
    FlatAllReduce,
    Payload,
    devices_along,
)
from jaxdist.collectives.permutes import PermuteStep, permutes
from jaxdist.collectives.schedule_executor import run
from jaxdist.collectives.schedule_traffic import permutes_payload_bytes


@dataclass(frozen=True, kw_only=True)
class ScheduledAllReduce(FlatAllReduce):
    """All numbers as they are, by a step list."""

    schedule: str = "ring"
    """One of `jaxdist.collectives.algorithms.registry.ALGORITHMS`."""

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.schedule

    @property
    def lossless(self) -> bool:
        """Everything is sent."""
        return True

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Run the list."""
        return run(SCHEDULES[self.schedule](lax.axis_size(axes)), x, axes), x

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the permutes."""
        algorithm, steps = _list(self.schedule, devices_along(sizes))
        yield Payload(
            kind="collective-permute",
            axes=tuple(sizes),
            payload_bytes=permutes_payload_bytes(algorithm, steps, elements, itemsize),
            arrays=sum(map(len, steps)),
        )


@functools.cache
def _list(
    name: str, devices: int
) -> tuple[CollectiveSchedule, tuple[PermuteStep, ...]]:
    """Return a step list and its permutes: of 256 devices they take a second."""
    algorithm = SCHEDULES[name](devices)
    return algorithm, permutes(algorithm)
