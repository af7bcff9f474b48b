"""Exact all-reduce: by the backend, or by a schedule of our choice."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    FlatAllReduce,
    Payload,
    Shape,
    devices_along,
)
from jaxdist.collectives.permutes import PermuteStep, permutes
from jaxdist.collectives.schedule_executor import run_schedule
from jaxdist.collectives.schedule_traffic import permutes_payload_bytes


@dataclass(frozen=True)
class ExactAllReduce(AllReduceAlgorithm):
    """`lax.psum`: arrays as they are."""

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "exact"

    @property
    def lossless(self) -> bool:
        """Everything is sent."""
        return True

    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Sum; the residual is zero, and the state of another algorithm is kept."""
        given = list(leaves)
        total = lax.psum(given, axes)
        return AllReduceResult(total=total, contributions=given, state=list(state))

    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield one all-reduce of everything."""
        # In the dtype of the arrays, as the program is written; a backend may widen it.
        size = sum(math.prod(shape) for shape in shapes) * np.dtype(dtype).itemsize
        yield Payload(kind="all-reduce", axes=tuple(sizes), payload_bytes=size)


@dataclass(frozen=True, kw_only=True)
class ScheduledAllReduce(FlatAllReduce):
    """The permutes of a schedule (`jaxdist.collectives.algorithms`)."""

    schedule: str = "ring"
    """One of `jaxdist.collectives.algorithms.registry.SCHEDULES`."""

    @property
    def name(self) -> str:
        """The schedule's."""
        return self.schedule

    @property
    def lossless(self) -> bool:
        """Everything is sent."""
        return True

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Run the schedule."""
        # Everything is sent, so a device's contribution is what it has.
        return run_schedule(SCHEDULES[self.schedule](lax.axis_size(axes)), x, axes), x

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the permutes."""
        schedule, steps = _cached_permutes(self.schedule, devices_along(sizes))
        yield Payload(
            kind="collective-permute",
            axes=tuple(sizes),
            payload_bytes=permutes_payload_bytes(schedule, steps, elements, itemsize),
            arrays=sum(map(len, steps)),
        )


# Of 256 devices the permutes take a second, and a plan asks for them bucket by bucket.
@functools.cache
def _cached_permutes(
    name: str, devices: int
) -> tuple[CollectiveSchedule, tuple[PermuteStep, ...]]:
    schedule = SCHEDULES[name](devices)
    return schedule, permutes(schedule)
