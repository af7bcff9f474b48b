"""Batch normalisation with statistics summed over every device that shares them."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.axes import BATCH_AXES
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.halo import Split
from jaxdist.layers.manual_axes import manual_axes, manual_axis_sizes
from jaxdist.layers.tensor_role import Role
from jaxdist.layers.valid_rows import sum_valid_rows

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
        if mask is not None:
            raise TypeError("BatchNorm takes no mask: pad with whole samples instead")
        running = (
            self.use_running_average
            if use_running_average is None
            else use_running_average
        )
        with jax.named_scope(self.scope or "BatchNorm"):
            full = accumulation_dtype(x.dtype)
            if running:
                mean, var = self.mean[...], self.var[...]
            else:
                mean, var = self._moments(x.astype(full))
            scale, bias = (
                _param_values(self.scale, full),
                _param_values(self.bias, full),
            )
            gain = lax.rsqrt(var.astype(full) + self.epsilon) * scale
            y = (x.astype(full) - mean.astype(full)) * gain + bias
            return y.astype(self.dtype or x.dtype)

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance `[C]`, and fold them into the running ones."""
        axes, groups = self._shared()
        mean = _pmean(self._local_mean(x), axes, groups)
        var = _pmean(self._local_mean(jnp.square(x - mean)), axes, groups)
        apart = manual_axes(BATCH_AXES) if self.statistics == "replica" else ()
        for running, batch in ((self.mean, mean), (self.var, var)):
            # Replicas with statistics of their own still keep one running average.
            new = _pmean(lax.stop_gradient(batch), apart).astype(running[...].dtype)
            mixed = self.momentum * running[...] + (1 - self.momentum) * new
            # Not `running[...] = mixed`: an index makes tracing quadratic in layers.
            running.set_value(mixed)
        return mean, var

    def _local_mean(self, x: jax.Array) -> jax.Array:
        """Return this device's part of the mean over real positions, `[C]`."""
        total, count = sum_valid_rows(x, self.split)
        return total / count

    def _shared(self) -> tuple[tuple[str, ...], list[list[int]] | None]:
        """Return the axes whose devices share statistics, and their groups if several.

        Devices are counted along the axes in the mesh's order, replicas outside, so
        that neighbouring replicas and all slices of their samples are one range.
        """
        if self.statistics == "replica" and self.group == 1:
            return manual_axes(self.split.shared), None
        axes, sizes = (
            manual_axes((*BATCH_AXES, *self.split.shared)),
            manual_axis_sizes(),
        )
        devices = math.prod(sizes[axis] for axis in axes)
        width = self.group * math.prod(
            sizes[axis] for axis in manual_axes(self.split.shared)
        )
        if self.statistics == "global" or width >= devices:
            return axes, None
        starts = range(0, devices, width)
        return axes, [list(range(start, start + width)) for start in starts]


def _pmean(
    x: jax.Array, axes: tuple[str, ...], groups: list[list[int]] | None = None
) -> jax.Array:
    return lax.pmean(x, axes, axis_index_groups=groups) if axes else x


def _param_values(variable: nnx.Param[jax.Array] | None, dtype: Any) -> jax.Array:
    """Return a parameter's values; batch norm without scale or bias is refused."""
    if variable is None:
        raise TypeError("BatchNorm needs use_scale=True and use_bias=True")
    return variable[...].astype(dtype)
