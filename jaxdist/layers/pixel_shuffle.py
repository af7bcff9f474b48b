"""Pixel shuffle: channels become rows, and rows channels, of images that may be split.

A row of the input makes f rows of the output, or f rows make one, whichever device has
it. So along a split dim nothing is fetched, and blocks hold f times as many rows, or a
part.
"""

import math
from collections.abc import Sequence

import jax
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.layers.halo import Rows, Split
from jaxdist.layers.valid_rows import check_even_blocks
from jaxdist.layers.window import Windows, make_windows, transposed_windows


class _Shuffle(nnx.Module):
    """What both have: a factor a dim, and a split."""

    scope: str = ""
    split: Split = Split()
    """How its images are cut."""

    def __init__(self, factor: int | Sequence[int]) -> None:
        # Tuples: attributes of a module are static and must be hashable.
        self.factor = factor if isinstance(factor, int) else tuple(factor)

    def factors(self, dims: int) -> tuple[int, ...]:
        """Return the factor of each dim between batch and channels."""
        return (self.factor,) * dims if isinstance(self.factor, int) else self.factor


class PixelShuffle(_Shuffle):
    """Make f rows of each row along every dim, of f^d channels one.

        y[i f + p, j f + q, c] = x[i, j, (c f + p) f + q]

    for two dims: behind a convolution of f^d times the channels, the sub-pixel
    convolution of Shi et al. 2016, arXiv:1609.05158, equation 4. Channels are in the
    order of `torch.nn.PixelShuffle`.

    Args:
        factor: rows of output for each row of input, for all dims or one a dim.
    """

    def windows(self, rows: Rows) -> Windows:
        """Return windows of f rows and stride f over each dim of the whole output.

        Args:
            rows: real rows of the input along each dim between batch and channels.
        """
        return transposed_windows(rows, self.factor, self.factor, "SAME")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C f^d]` to `[B, ..., C]` with more positions.

        Raises:
            BadInput: channels that are not as many for each new position.
        """
        with jax.named_scope(self.scope or "PixelShuffle"):
            samples, *rows, channels = x.shape
            factors = self.factors(len(rows))
            kept, rest = divmod(channels, math.prod(factors))
            if rest:
                raise BadInput(
                    f"{self.scope or 'a pixel shuffle'} has no whole channels to give",
                    rule="channels are a multiple of the positions that one becomes",
                    values=f"{channels} channels, factor {self.factor} over "
                    f"{len(rows)} dims",
                    remedy=f"{(kept + 1) * math.prod(factors)} channels in front of it",
                )
            dims = len(rows)
            # [B, rows..., C, f, f]
            x = x.reshape(samples, *rows, kept, *factors)
            # Each dim's rows, and behind them what each of its rows becomes.
            pairs = (axis for d in range(dims) for axis in (1 + d, 2 + dims + d))
            x = x.transpose(0, *pairs, 1 + dims)
            more = (n * f for n, f in zip(rows, factors, strict=True))
            return x.reshape(samples, *more, kept)


class PixelUnshuffle(_Shuffle):
    """Make one row of f along every dim, with f^d times the channels.

    The inverse of `PixelShuffle`, as `torch.nn.PixelUnshuffle`. Rows are multiples of
    f.

    Args:
        factor: rows of input for each row of output, for all dims or one a dim.
    """

    def windows(self, rows: Rows) -> Windows:
        """Return windows of f rows and stride f over each dim of the whole input.

        Args:
            rows: real rows of the input along each dim between batch and channels.
        """
        return make_windows(rows, self.factor, self.factor, "VALID")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` to `[B, ..., C f^d]` with fewer positions.

        Raises:
            BadInput: rows that are no multiple of the factor.
        """
        with jax.named_scope(self.scope or "PixelUnshuffle"):
            split, real = self.split.dims(x), self.split.real(x)
            check_even_blocks(self.scope, self.split, split, self.windows(real))
            samples, *rows, channels = x.shape
            factors, dims = self.factors(len(rows)), len(rows)
            if any(n % f for n, f in zip((*real, *rows), factors * 2, strict=True)):
                raise BadInput(
                    f"{self.scope or 'a pixel unshuffle'} has no whole rows to make",
                    rule="rows are multiples of the factor",
                    values=f"rows {' x '.join(map(str, real))}, factor {self.factor}",
                    remedy="another size of the image (data.size), or another factor",
                )
            fewer = [n // f for n, f in zip(rows, factors, strict=True)]
            halves = [n for pair in zip(fewer, factors, strict=True) for n in pair]
            # [B, rows / f, f, columns / f, f, C]
            x = x.reshape(samples, *halves, channels)
            kept = range(1, 2 * dims, 2)
            x = x.transpose(0, *kept, 1 + 2 * dims, *(d + 1 for d in kept))
            return x.reshape(samples, *fewer, channels * math.prod(factors))
