"""Spatial gather: where the split of images ends, and each device has all rows.

It stands before a block of a network's chain. The layers behind it see whole images.
What they do is done on every device that held a part of them; or, where rows are
exchanged for samples, each device has samples of its own.

Source: Kahira et al. 2021, arXiv:2104.09075, section 3, data and spatial combined.
"""

from typing import Any

import jax
from flax import nnx
from jax import lax

from jaxdist.core.axes import spatial_axes
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.instance_methods import wrap_method
from jaxdist.layers.all_gather_slices import all_gather_dim, all_to_all_dims
from jaxdist.layers.halo import Split


class Gather(nnx.Module):
    """All-gather the blocks of images along every split dim, and remove padding.

    Backward the gradients that devices have of an image are summed, and each keeps
    those of its own rows.

    Args:
        gather_block: name of the block that it stands before.
    """

    scope: str = ""
    split: Split = Split()
    """How its images are cut."""

    def __init__(self, gather_block: str) -> None:
        self.until = gather_block

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map a block of images `[B, ..., C]` to the whole images.

        Raises:
            BadInput: what enters the block are no images.
        """
        if not spatial_axes(getattr(x, "ndim", 0)):
            shapes = (str(list(leaf.shape)) for leaf in jax.tree.leaves(x))
            raise _spatial_end_error(
                f"no images enter {self.until}",
                "the split of images ends before a block that reads an array of images",
                f"{self.until} reads {' and '.join(shapes)}",
            )
        with jax.named_scope(self.scope or "Gather"):
            # Padding is at the end of the whole image: dropped once all rows are there.
            real = self.split.real(x)
            # Dim by dim: each gather has a group along one axis of the mesh.
            for dim, axis in self.split.dims(x).items():
                rows = self.rows_of_all(x, dim, axis)
                x = lax.slice_in_dim(rows, 0, real[dim - 1], axis=dim)
            return x

    def rows_of_all(self, x: jax.Array, dim: int, axis: str) -> jax.Array:
        """Return the rows of all devices along one dim, padding included."""
        return all_gather_dim(x, dim, axis)


class Exchange(Gather):
    """All-to-all: exchange samples for the rows of those that are left, dim by dim."""

    def rows_of_all(self, x: jax.Array, dim: int, axis: str) -> jax.Array:
        """Return the rows of all devices along one dim, for a part of the samples."""
        return all_to_all_dims(x, 0, dim, axis)


def insert_gather(
    network: Any, gather_block: str, gather_class: type[Gather] = Gather
) -> Gather:
    """Put a gather before a block of a network's chain; changed in place.

    Args:
        network: a fresh merge inside a trace.
        gather_block: name of the block.
        gather_class: what it does.

    Raises:
        BadInput: the network has no such block, or it is the first.
    """
    if not hasattr(network, "chain"):
        kind = type(network).__name__
        raise _spatial_end_error(
            f"{kind} has no blocks that a split could end at",
            "plan.spatial_end names a block of the network's chain()",
            f"{kind} has no chain()",
        )
    blocks = dict(network.chain())
    if gather_block not in list(blocks)[1:]:
        near = did_you_mean(gather_block, list(blocks)[1:])
        raise _spatial_end_error(
            f"the split of images cannot end at {gather_block}",
            "plan.spatial_end names a block of the network, and not the first",
            f"the blocks are {', '.join(blocks)}",
            *([f"did you mean plan.spatial_end={near}?"] if near else []),
        )
    block, gather = blocks[gather_block], gather_class(gather_block)
    # An attribute as well, so that a walk over the modules gives it a scope and a
    # split.
    setattr(network, f"gather_{gather_block}", gather)

    def gathered(call: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, gather(x), *args, **kwargs)

    wrap_method(block, gathered)
    return gather


def _spatial_end_error(what: str, rule: str, values: str, *first: str) -> BadInput:
    whole = "plan.spatial_end= splits images as far as they go"
    return BadInput(what, rule=rule, values=values, remedy=(*first, whole))
