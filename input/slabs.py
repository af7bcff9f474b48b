"""Slabs: which part of each sample the devices of this process hold.

A batch that is split along spatial axes lies in blocks, one a device. A process reads
the box around the blocks of its own devices, and nothing else of a sample. Layers fetch
their halos from other devices, so a slab has none; a random shift of images needs rows
beside it, which are read with it.
"""

from collections.abc import Mapping

from jax.sharding import NamedSharding

from jaxdist.input.sources import Slab

Shapes = Mapping[str, tuple[int, ...]]
Starts = Mapping[str, tuple[int, ...]]
"""Where the arrays of a batch begin in a sample, by key, an index a dim."""


def local_slabs(
    shardings: Mapping[str, NamedSharding],
    batch_shapes: Shapes,
    sample_shapes: Shapes,
    halos: Shapes,
) -> dict[str, Slab]:
    """Find the part of a sample that this process reads, by key.

    Args:
        shardings: how each key of a batch lies on the devices.
        batch_shapes: of global arrays, [batch, ...], padding included.
        sample_shapes: of a sample's own arrays, [...].
        halos: entries that are read on both sides of a block, a number a dim; keys
            that are not here have none.

    Returns:
        A slice a dim, inside the sample; of no entries where the devices hold only
        padding.
    """
    slabs = {}
    for key, sharding in shardings.items():
        if key not in sample_shapes:
            continue  # `id` and `weight` are made by the feed
        shape, own = batch_shapes[key], sample_shapes[key]
        held = sharding.addressable_devices_indices_map(shape).values()
        # Without the rows: which samples a process reads is another question.
        blocks = [index[1:] for index in held if index is not None]
        halo = halos.get(key, (0,) * len(own))
        slab = []
        for dim, size in enumerate(own):
            bounds = [block[dim].indices(shape[dim + 1])[:2] for block in blocks]
            low = min(first for first, _ in bounds) - halo[dim]
            high = max(last for _, last in bounds) + halo[dim]
            # Padding lies behind the sample: a block of it alone becomes an empty
            # slice.
            low = min(max(low, 0), size)
            slab.append(slice(low, max(low, min(high, size))))
        slabs[key] = tuple(slab)
    return slabs
