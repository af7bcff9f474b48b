"""Transposed convolution, channels last, of images that may be split."""

import jax
from flax import nnx
from jax import lax

from jaxdist.layers.halo import Rows, Split, halo_conv_transpose
from jaxdist.layers.tensor_role import Role, combine_output, local_input
from jaxdist.layers.valid_rows import check_even_blocks, fill_padding
from jaxdist.layers.window import (
    Windows,
    block_windows,
    reads_behind,
    transposed_windows,
)


class ConvTranspose(nnx.ConvTranspose):
    """`flax.nnx.ConvTranspose` whose input may be this device's block of the image.

        y[o] = sum_i x[i] w[i s - o + a]

    of stride s, with a rows of padding before the input, whose rows lie s apart
    (`jax.lax.conv_transpose`). Along a split dim the rows of x that the outputs of a
    block need come from the neighbours; none do where the kernel has s rows or fewer.
    Padding is SAME, s rows of output for each of input, or VALID.
    """

    scope: str = ""
    role: Role | None = None
    split: Split = Split()
    """How its images are cut."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Map `inputs [B, ..., C_in]` to `[B, ..., C_out]` with more positions.

        Raises:
            TypeError: a masked kernel, or one in the order of the forward convolution.
            BadInput: a padding other than SAME and VALID.
        """
        if self.mask is not None or self.transpose_kernel:
            raise TypeError(
                "ConvTranspose takes no mask, and kernels [..., C_in, C_out] alone: "
                "transpose_kernel=False"
            )
        with jax.named_scope(self.scope or "ConvTranspose"):
            # Inside a shard_map these are this device's slices of kernel and bias.
            kernel = self.kernel[...]
            bias = self.bias[...] if self.bias is not None else None
            x, kernel, bias = self.promote_dtype(
                (inputs, kernel, bias), dtype=self.dtype
            )
            x, windows = self._prepare(local_input(x, self.role))
            # The kernel of the convolution that is transposed, [..., C_out, C_in].
            taps = tuple(range(kernel.ndim - 2))
            # `lax.conv_transpose` does not reverse its taps, the gradient of a
            # convolution does.
            turned = lax.rev(kernel, taps).swapaxes(-1, -2)
            y = halo_conv_transpose(x, turned, windows)
            return combine_output(y, self.role, bias)

    def windows(self, rows: Rows) -> Windows:
        """Return the windows of the convolution that this transposes, on the output.

        Args:
            rows: real rows of the input along each dim between batch and channels.
        """
        return transposed_windows(
            rows, self.kernel_size, self.strides, self.padding, self.kernel_dilation
        )

    def _prepare(self, x: jax.Array) -> tuple[jax.Array, Windows]:
        """Return a block with its padding replaced, and the windows on its output."""
        split = self.split.dims(x)
        whole = self.windows(self.split.real(x))
        check_even_blocks(self.scope, self.split, split, whole)
        # Only outputs that reach behind the last row of the input meet padding.
        meets = {d: whole[d - 1].outputs for d in split if reads_behind(whole[d - 1])}
        rows = [n * w.stride for n, w in zip(x.shape[1:-1], whole)]
        block = (x.shape[0], *rows, x.shape[-1])
        return (
            fill_padding(x, split, meets),
            block_windows(whole, split, block, self.scope),
        )
