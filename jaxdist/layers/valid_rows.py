"""Valid rows: which rows of a split image are real, and which are padding.

N rows lie on n devices as blocks of b rows, and n b may be larger than N. The rows from
N on are padding: they hold any finite numbers, as what a layer makes of padding is
padding. A layer whose windows or sums would meet them replaces them first, so nothing
real ever depends on them, and their gradients are zero.
"""

from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.core.errors import BadInput
from jaxdist.layers.halo import Rows, Split
from jaxdist.layers.manual_axes import manual_axis_sizes
from jaxdist.layers.window import Windows, block_windows


class Windowed(Protocol):
    """A layer that passes a window over its input."""

    scope: str
    split: Split
    fill: float

    def windows(self, rows: Rows) -> Windows:
        """Return the window over each dim of the whole image."""
        ...


def fill_padding(
    x: jax.Array, split: Mapping[int, str], rows: Mapping[int, int], value: float = 0.0
) -> jax.Array:
    """Overwrite the padding of a block; without padding `x` itself.

    Args:
        x: block `[B, ..., C]`.
        split: {dim: axis} of the dims that are cut.
        rows: real rows along those dims whose padding is replaced.
        value: by what.
    """
    for dim, real in rows.items():
        block = x.shape[dim]
        # The index of each row in the whole image, compared with the real rows.
        if real < block * lax.axis_size(split[dim]):
            along = [block if d == dim else 1 for d in range(x.ndim)]
            here = lax.broadcasted_iota(jnp.int32, along, dim)
            first = lax.axis_index(split[dim]).astype(jnp.int32) * block
            x = jnp.where(here + first < real, x, jnp.asarray(value, x.dtype))
    return x


def zero_padding(x: jax.Array, split: Split) -> jax.Array:
    """Replace all padding of a block by zeros, so that sums are of what is real."""
    # Zeros add nothing to sums; counts are taken from the real rows.
    dims, real = split.dims(x), split.real(x)
    return fill_padding(x, dims, {dim: real[dim - 1] for dim in dims})


def prepare_windows(layer: Windowed, x: jax.Array) -> tuple[jax.Array, Windows]:
    """Prepare a block for a layer's windows.

    Returns:
        The block, its padding replaced where a window meets it, and the window over
        each of its dims.

    Raises:
        BadInput: blocks without whole strides; or the outputs are not one for each
            stride of rows, and the layer was not told its real rows.
    """
    split = layer.split.dims(x)
    whole = layer.windows(layer.split.real(x))
    check_even_blocks(layer.scope, layer.split, split, whole)
    # Only windows that reach behind the last row meet padding at all.
    meets = {dim: whole[dim - 1].rows for dim in split if whole[dim - 1].overhang}
    filled = fill_padding(x, split, meets, layer.fill)
    return filled, block_windows(whole, split, x.shape, layer.scope)


def check_even_blocks(
    scope: str, split: Split, dims: Mapping[int, str], whole: Windows
) -> None:
    """Refuse blocks with padding of a layer that was not told its real rows.

    Args:
        scope: name of the layer.
        split: how its images are cut.
        dims: {dim: axis} of the dims that are cut.
        whole: its windows over each dim of the whole image.

    Raises:
        BadInput: the outputs are not one for each stride of rows.
    """
    # Without real rows the layer takes all as real, which only an even cut allows.
    sizes = manual_axis_sizes()
    for dim, axis in dims.items() if split.rows is None else ():
        window = whole[dim - 1]
        if not window.is_even(sizes[axis]):
            raise BadInput(
                f"{scope or 'a layer'} is cut along {axis} into blocks with padding",
                rule="a layer is told how many of its rows are real, unless blocks "
                "hold whole strides and give one row for each",
                values=f"{window.rows} rows over {sizes[axis]} devices give "
                f"{window.outputs} by a window of {window.extent}, stride "
                f"{window.stride}, padding {window.pads}",
                remedy="jaxdist.train.build_layout.build_layout(task, plan, mesh, "
                "shapes)",
            )
