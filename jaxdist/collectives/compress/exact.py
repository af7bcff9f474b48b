"""The exact sum, as a method among the others."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    Payload,
    Shape,
)


@dataclass(frozen=True)
class ExactAllReduce(AllReduceAlgorithm):
    """Numbers as they are."""

    @property
    def name(self) -> str:
        """What it is."""
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
        """Sum; nothing is left, and what another method remembers stays."""
        given = list(leaves)
        total = lax.psum(given, axes)
        return AllReduceResult(total=total, contributions=given, state=list(state))

    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield one sum of all numbers."""
        size = sum(math.prod(shape) for shape in shapes) * np.dtype(dtype).itemsize
        yield Payload(kind="all-reduce", axes=tuple(sizes), payload_bytes=size)
