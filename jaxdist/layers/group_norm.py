"""Group norm and instance norm over whole samples, whatever dims are split."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.layers.halo import Split
from jaxdist.layers.tensor_role import Role
from jaxdist.layers.valid_rows import zero_padding


class GroupNorm(nnx.GroupNorm):
    """`flax.nnx.GroupNorm` with two-pass statistics of each whole sample.

        y = (x - mean) / sqrt(var + epsilon) * scale + bias

    Mean and variance are those of a sample's positions and a group of its channels (Wu
    and He 2018, arXiv:1803.08494, equations 1 to 3). Where positions are split the sums
    of all devices are added.
    """

    scope: str = ""
    role: Role | None = None
    """Whether its features are a slice: `inner`, of whole groups."""
    split: Split = Split()
    """How its images are cut."""

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalise each sample of `x [B, ..., C]`.

        Raises:
            TypeError: a mask; padding rows are excluded by the split.
            BadInput: a slice of the channels that is not of whole groups.
        """
        if mask is not None:
            raise TypeError(f"{type(self).__name__} takes no mask: rows are all real")
        if x.shape[-1] % self.group_size:
            raise BadInput(
                f"{self.scope or 'a group norm'} has no whole groups on a device",
                rule="a slice of the channels is of whole groups",
                values=f"{x.shape[-1]} channels a device, {self.group_size} a group",
                remedy="plan.mesh.tensor=1, or plan.tensor_strategy=filter",
            )
        with jax.named_scope(self.scope or type(self).__name__):
            full = accumulation_dtype(x.dtype)
            wide = x.astype(full)
            # Two passes: mean(x**2) - mean(x)**2 would lose the digits of a small
            # variance.
            deviation = wide - self._mean(wide)
            y = deviation * lax.rsqrt(self._mean(deviation**2) + self.epsilon)
            if self.scale is not None:
                y = y * self.scale[...].astype(full)
            if self.bias is not None:
                y = y + self.bias[...].astype(full)
            return y.astype(self.dtype or x.dtype)

    def _mean(self, x: jax.Array) -> jax.Array:
        """Return the mean over positions and groups, `[B, 1..., C]`."""
        dims = tuple(range(1, x.ndim - 1))
        sums = zero_padding(x, self.split).sum(dims)
        grouped = sums.reshape(len(x), -1, self.group_size).sum(-1)
        # [B, groups]: channels are added first, so that devices add few numbers.
        if axes := tuple(self.split.dims(x).values()):
            grouped = lax.psum(grouped, axes)
        # However rows are padded, a sample has as many positions as are real.
        mean = grouped / (self.group_size * math.prod(self.split.real(x)))
        channels = jnp.repeat(mean, self.group_size, axis=1)
        return channels.reshape(len(x), *(1,) * len(dims), x.shape[-1])


class InstanceNorm(GroupNorm):
    """Group norm in which each channel is a group of its own.

    Ulyanov, Vedaldi, Lempitsky 2016, arXiv:1607.08022, equation 2.

    Args:
        num_features: channels.
        how: settings of `GroupNorm`: `epsilon`, `dtype`, `rngs` and others.
    """

    def __init__(self, num_features: int, **how: Any) -> None:
        super().__init__(num_features, num_groups=num_features, **how)
