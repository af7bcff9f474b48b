"""A split: how the images that one layer reads are cut over devices.

Which axes are there is seen from the trace (`jaxdist.layers.manual`). Which of them cut
this layer's images, and how many rows are real, is told to it by `jaxdist.layers.bind`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import jax
from jax import lax

from jaxdist.core.axes import SPATIAL_AXES, spatial_axes_of
from jaxdist.layers.manual import manual, manual_sizes
from jaxdist.layers.window import whole_shape

Rows = tuple[int, ...]
"""Real rows of an image along each dim between batch and channels."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a layer's images lie."""

    axes: tuple[str, ...] = SPATIAL_AXES
    """Axes that cut its images where they are manual; none where images are whole."""
    rows: Rows | None = None
    """Real rows of the whole input; None where all are."""
    samples: tuple[str, ...] = ()
    """Axes that deal out its samples, where they cut images before."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Axes along which devices have parts of the same samples, in any form."""
        return (*self.axes, *self.samples)

    def dims(self, x: jax.Array) -> dict[int, str]:
        """Return {dim: axis} of the dims of `x [B, ..., C]` that are cut."""
        here = manual_sizes().keys() & self.axes
        names = enumerate(spatial_axes_of(x.ndim), start=1)
        return {dim: name for dim, name in names if name in here}

    def real(self, x: jax.Array) -> Rows:
        """Return the real rows of the image that `x [B, ..., C]` is a block of."""
        return self.rows or whole_shape(x.shape, self.dims(x), manual_sizes())[1:-1]


def own_samples(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """Cut this device's samples out of `x [B, ...]`, dealt out over manual axes."""
    if not (here := manual(axes)):
        return x
    size = x.shape[0] // lax.axis_size(here)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(here) * size, size)
