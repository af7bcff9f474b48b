"""Convolution, channels last, that exchanges halos where a spatial dim is split."""

from typing import Any

import jax
from flax import nnx

from jaxdist.layers.halo import Rows, Split, halo_conv
from jaxdist.layers.tensor_role import Role, combine_output, local_groups, local_input
from jaxdist.layers.valid_rows import prepare_windows
from jaxdist.layers.window import Windows, make_windows


class Conv(nnx.Conv):
    """`flax.nnx.Conv` whose input may be this device's block of the image.

    Along a split dim the rows a window needs come from the neighbours
    (`jaxdist.layers.halo`), and only the edges of the image are padded.
    """

    scope: str = ""
    role: Role | None = None
    split: Split = Split()
    """How its images are cut."""
    fill: float = 0.0
    """Value of rows beyond the edges."""

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Convolve `inputs [B, ..., C_in]` to `[B, ..., C_out]`.

        Raises:
            TypeError: an `out_sharding`; the mesh's axes are never Explicit here.
        """
        if out_sharding is not None:
            raise TypeError("Conv takes no out_sharding: the plan says how it is split")
        with jax.named_scope(self.scope or "Conv"):
            # Inside a shard_map these are this device's slices of kernel and bias.
            kernel = self.kernel[...]
            bias = self.bias[...] if self.bias is not None else None
            x, kernel, bias = self.promote_dtype(
                (inputs, kernel, bias), dtype=self.dtype
            )
            groups = local_groups(self.role, self.feature_group_count)
            x = local_input(x, self.role, self.feature_group_count)
            # A block with its padding replaced, and its windows along each dim.
            x, windows = prepare_windows(self, x)
            y = halo_conv(x, kernel, windows, groups)
            return combine_output(y, self.role, bias)

    def windows(self, rows: Rows) -> Windows:
        """Return how the kernel passes over each dim of a whole image.

        Args:
            rows: real rows of the image along each dim between batch and channels.
        """
        return make_windows(
            rows, self.kernel_size, self.strides, self.padding, self.kernel_dilation
        )
