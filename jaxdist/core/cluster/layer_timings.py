"""Layer timings: what layers without a product take, and the loss and the update.

    seconds = (bytes / bandwidth + FLOPs / peak + launch) r
    r = sum_i v_i r_i / sum_i v_i
    v_i = 1 / d_i^4,   d_i = distance to the timed layer i over the logarithm of bytes

Norms, maxima, sums of branches and dropout are bound by memory. How often their arrays
pass through it depends on what a compiler fuses: r is the number of passes of such a
layer in networks that were timed, forward and backward. A layer whose work went into
its neighbours' kernels takes no time of its own.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np

from jaxdist.core.cluster.kernel_timings import (
    FloatArray,
    check_peak,
    inverse_distance_weights,
    read_row,
)
from jaxdist.core.errors import BadInput

LOSS: Final = "loss"
"""Kind of what a loss does to the network's outputs, whose bytes count."""
UPDATE: Final = "update"
"""Kind of an optimizer's update, and of what else a step does to its state."""


@dataclass(frozen=True, kw_only=True)
class LayerTiming:
    """A layer that was timed."""

    kind: str
    """Name of its class, or `loss`, or `update`."""
    size: float
    """Bytes of the activations that it makes, of the outputs, or of the state."""
    flops_forward: float = 0.0
    """FLOPs of its forward pass; those of attention count."""
    flops_backward: float = 0.0
    """The same of its backward pass."""
    forward_s: float
    """Seconds of its forward pass; 0 where its neighbours' kernels do its work."""
    backward_s: float
    """Seconds of its backward pass."""

    def __post_init__(self) -> None:
        work = self.flops_forward, self.flops_backward, self.forward_s, self.backward_s
        if self.size <= 0 or min(work) < 0:
            raise BadInput(
                "no layer takes so long",
                rule="bytes of a layer are above 0, its FLOPs and seconds 0 at least",
                values=f"{self}",
                remedy="jaxdist calibrate target tpu-v5p writes them",
            )

    @property
    def row(self) -> list[Any]:
        """The same as a row of a file; `of_row` reads it."""
        return list(astuple(self))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Self:
        """Read a row.

        Raises:
            BadInput: it has other columns.
        """
        example = '["BatchNorm", 4.0e+8, 0, 0, 3.0e-4, 6.0e-4]'
        return cls(**read_row(cls, row, "layer", example))


@dataclass(frozen=True, kw_only=True)
class LayerTimings:
    """Times of layers without products on a device."""

    origin: str
    """As of a `SourcedNumber`."""
    peak: float
    """FLOPs a second of the device then; layers of a faster one take less by that."""
    bandwidth: float
    """Bytes a second that its memory passed."""
    timed: tuple[LayerTiming, ...]
    """In any order; equal ones are averaged."""
    launch: float = 0.0
    """Seconds that an operation takes at least."""

    def __post_init__(self) -> None:
        check_peak("layers", self.peak, self.origin)
        check_peak("the memory", self.bandwidth, self.origin)

    def seconds(
        self, kind: str, size: float, flops: tuple[float, float], peak: float
    ) -> tuple[float, float] | None:
        """Return the seconds of forward and backward pass; None if none is alike.

        Args:
            kind: name of the layer's class.
            size: bytes of its activations.
            flops: FLOPs of both passes.
            peak: FLOPs a second of the device.

        >>> norm = LayerTiming(kind="Norm", size=8e9, forward_s=2.0, backward_s=3.0)
        >>> layers = LayerTimings(
        ...     origin="given: me", peak=1e12, bandwidth=4e9, timed=(norm,)
        ... )
        >>> layers.seconds("Norm", 4e9, (0.0, 0.0), 1e12)
        (1.0, 1.5)
        """
        if kind not in self._of_kind or size <= 0:
            return None
        places, ratios = self._of_kind[kind]
        near = inverse_distance_weights(places - np.log2([size]))
        # [timed] @ [timed, 2]: passes over the least seconds, of forward and backward.
        forward, backward = near @ ratios / near.sum()
        scale = self.peak / peak
        return (
            scale * float(forward) * self._least_seconds(size, flops[0]),
            scale * float(backward) * self._least_seconds(size, flops[1]),
        )

    def _least_seconds(self, size: float, flops: float) -> float:
        return size / self.bandwidth + flops / self.peak + self.launch

    @cached_property
    def _of_kind(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Places and passes of each kind."""
        found = {}
        for kind in {one.kind for one in self.timed}:
            each = [one for one in self.timed if one.kind == kind]
            ratios = [
                (
                    one.forward_s / self._least_seconds(one.size, one.flops_forward),
                    one.backward_s / self._least_seconds(one.size, one.flops_backward),
                )
                for one in each
            ]
            found[kind] = np.log2([[one.size] for one in each]), np.array(ratios)
        return found
