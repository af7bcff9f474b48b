"""Convolution, channels last, that exchanges halos where a spatial dim is split."""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax import lax

from jaxdist.layers.halo_conv import channels_last, halo_conv
from jaxdist.layers.manual import manual_sizes, split_dims
from jaxdist.layers.role import Role, entered, left, own_groups
from jaxdist.layers.window import Windows, cut, whole_shape, windows_over


class Conv(nnx.Conv):
    """`flax.nnx.Conv` whose input may be this device's block of the image.

    Along a split dim the rows a window needs come from the neighbours
    (`jaxdist.layers.halo`), and only the global edges are padded: by SAME, or by rows
    that give one output row for each stride of rows.
    """

    scope: str = ""
    role: Role | None = None

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Convolve `inputs [B, ..., C_in]` to `[B, ..., C_out]`.

        Raises:
            TypeError: an `out_sharding`; the mesh's axes are never Explicit here.
        """
        if out_sharding is not None:
            raise TypeError("Conv takes no out_sharding: the plan says how it is split")
        with jax.named_scope(self.scope or "Conv"):
            kernel = self.kernel[...]
            bias = self.bias[...] if self.bias is not None else None
            x, kernel, bias = self.promote_dtype(
                (inputs, kernel, bias), dtype=self.dtype
            )
            split = split_dims(x)
            windows = self.windows(x.shape, split, manual_sizes())
            x = entered(x, self.role, self.feature_group_count)
            groups = own_groups(self.role, self.feature_group_count)
            if split:
                y = halo_conv(x, kernel, windows, groups)
            else:
                y = lax.conv_general_dilated(
                    x,
                    kernel,
                    [w.stride for w in windows],
                    [w.pads for w in windows],
                    rhs_dilation=[w.dilation for w in windows],
                    dimension_numbers=channels_last(x.ndim),
                    feature_group_count=groups,
                )
            return left(y, self.role, bias)

    def windows(
        self, shape: Sequence[int], split: dict[int, str], sizes: dict[str, int]
    ) -> Windows:
        """Return how the kernel passes over each dim of one device's block.

        Args:
            shape: `[B, ..., C_in]` of the block.
            split: {dim: axis} of the split dims.
            sizes: {axis: devices along it}.

        Raises:
            BadInput: along a split dim a block does not hold whole strides, or the
                padding does not give one row for each stride of rows.
        """
        whole = whole_shape(shape, split, sizes)
        windows = windows_over(
            whole, self.kernel_size, self.strides, self.padding, self.kernel_dilation
        )
        return cut(windows, split, sizes, self.scope)
