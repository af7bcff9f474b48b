"""Batch normalisation with statistics summed over every device that shares them."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.axes import BATCH_AXES
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.halo import Split
from jaxdist.layers.manual_axes import manual_axes, manual_axis_sizes
from jaxdist.layers.tensor_role import Role
from jaxdist.layers.valid_rows import zero_padding

Statistics = Literal["global", "replica"]
"""global: mean and variance of the whole batch; replica: of one replica's samples, or
of the samples of a group of neighbouring replicas.
"""


class BatchNorm(nnx.BatchNorm):
    """`flax.nnx.BatchNorm` with two-pass statistics over manual axes.

        y = (x - mean) / sqrt(var + epsilon) * scale + bias

    The mean is taken first and the variance around it, each over all positions of the
    samples that share statistics (Ioffe and Szegedy 2015, algorithm 1). Samples split
    over spatial axes always share; those of other replicas only if `statistics` is
    "global" or they are of one group. Running statistics are equal on all replicas.
    """

    scope: str = ""
    role: Role | None = None
    """Whether its features are a slice: `inner`. All it does is a feature's own."""
    split: Split = Split()
    """How its images are cut."""
    statistics: Statistics = "global"
    group: int = 1
    """Neighbouring replicas that share where `statistics` is "replica"."""

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Normalise `x [B, ..., C]` over all dims but the last.

        Raises:
            TypeError: a mask; shards with different counts have no common mean here.
        """
        # Padding rows are excluded by the split, which counts them exactly.
        if mask is not None:
            raise TypeError("BatchNorm takes no mask: pad with whole samples instead")
        asked = use_running_average
        running = self.use_running_average if asked is None else asked
        with jax.named_scope(self.scope or "BatchNorm"):
            if self.scale is None or self.bias is None:
                raise TypeError("BatchNorm needs use_scale=True and use_bias=True")
            full = accumulation_dtype(x.dtype)
            if running:
                mean, var = self.mean[...], self.var[...]
            else:
                mean, var = self._moments(x.astype(full))
            scale, bias = self.scale[...].astype(full), self.bias[...].astype(full)
            gain = lax.rsqrt(var.astype(full) + self.epsilon) * scale
            y = (x.astype(full) - mean.astype(full)) * gain + bias
            return y.astype(self.dtype or x.dtype)

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance `[C]`, and update the running ones."""
        sizes = manual_axis_sizes()
        own = manual_axes(self.split.shared)
        axes, groups = own, None
        if self.statistics == "global" or self.group > 1:
            axes = manual_axes((*BATCH_AXES, *self.split.shared))
            devices = math.prod(sizes[axis] for axis in axes)
            width = self.group * math.prod(sizes[axis] for axis in own)
            if self.statistics == "replica" and width < devices:
                # Devices are counted along the axes in the mesh's order, replicas
                # outside, so that neighbouring replicas and all slices of their
                # samples are one range.
                starts = range(0, devices, width)
                groups = [list(range(start, start + width)) for start in starts]

        # Each device divides by the mean count of real positions, so that the mean over
        # devices is that over positions, however rows are padded.
        shards = math.prod(sizes[axis] for axis in self.split.dims(x).values())
        count = x.shape[0] * math.prod(self.split.real(x)) / shards
        dims = tuple(range(x.ndim - 1))
        total = zero_padding(x, self.split).sum(dims)
        mean = _pmean(total / count, axes, groups)
        total = zero_padding(jnp.square(x - mean), self.split).sum(dims)
        var = _pmean(total / count, axes, groups)
        apart = manual_axes(BATCH_AXES) if self.statistics == "replica" else ()
        for running, batch in ((self.mean, mean), (self.var, var)):
            # Replicas with statistics of their own still keep one running average.
            new = _pmean(lax.stop_gradient(batch), apart).astype(running[...].dtype)
            mixed = self.momentum * running[...] + (1 - self.momentum) * new
            # Not `running[...] = mixed`: an index makes tracing quadratic in layers.
            running.set_value(mixed)
        return mean, var


def _pmean(
    x: jax.Array, axes: tuple[str, ...], groups: list[list[int]] | None = None
) -> jax.Array:
    return lax.pmean(x, axes, axis_index_groups=groups) if axes else x
