"""Placing: a host's rows of a global batch, put on the devices it has."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from jaxdist.input.batch_assembly import Rows

Index = tuple[slice, ...]
PaddedShapes = Mapping[str, jax.ShapeDtypeStruct]

NO_PADDED_SHAPES: Final[PaddedShapes] = MappingProxyType({})
"""Shapes of a batch whose arrays are the samples' own."""


def local_rows(shardings: Iterable[NamedSharding], batch: int) -> Rows:
    """Name the rows of a global batch of which this host's devices hold any piece.

    Returns:
        int64, sorted, each row once.
    """
    pieces: list[Index] = []
    for sharding in shardings:
        # Only the first dim matters here: other dims are cut out of rows that are held.
        by_row = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        held = by_row.addressable_devices_indices_map((batch,)).values()
        pieces += [piece for piece in held if piece is not None]
    return covered_rows(pieces, batch)


def covered_rows(pieces: Iterable[Index], batch: int) -> Rows:
    """Gather the rows that pieces of a batch cover: sorted, each row once.

    >>> covered_rows([(slice(4, 6),), (slice(0, 2),), (slice(4, 6),)], 8).tolist()
    [0, 1, 4, 5]
    """
    # As a set: devices that hold copies name the same rows.
    ranges = {piece[0].indices(batch) for piece in pieces}
    return np.unique(np.concatenate([np.arange(*bounds) for bounds in ranges]))


def device_put_batch(
    local: Mapping[str, NDArray[Any]],
    rows: Rows,
    batch: int,
    shardings: Mapping[str, NamedSharding],
    shapes: PaddedShapes = NO_PADDED_SHAPES,
) -> dict[str, jax.Array]:
    """Put this host's rows of a batch on its devices, without asking other hosts.

    Args:
        local: arrays of those rows, [rows, ...].
        rows: which rows of the global batch they are, sorted.
        batch: rows of the global batch.
        shardings: how each key lies on the devices.
        shapes: of keys whose global arrays may be larger than the samples' own, zeros
            behind them.

    Returns:
        Global arrays [batch, ...].
    """

    def lay(name: str, array: NDArray[Any]) -> jax.Array:
        own = batch, *array.shape[1:]
        shape = shapes[name].shape if name in shapes else own

        def piece(index: Index | None) -> NDArray[Any]:
            # The rows of a device are contiguous in the global batch, and so are they
            # among this host's sorted rows.
            held = index or ()
            first, last, _ = held[0].indices(batch)
            begin = int(np.searchsorted(rows, first))
            part = array[(slice(begin, begin + last - first), *held[1:])]
            # Where the layout pads dims to divide them, the samples end early.
            wanted = [len(range(*i.indices(n))) for i, n in zip(held, shape)]
            behind = [(0, n - have) for n, have in zip(wanted, part.shape)]
            return np.pad(part, behind) if any(n for _, n in behind) else part

        # Called for the devices of this process only: no host needs the whole batch.
        return jax.make_array_from_callback(shape, shardings[name], piece)

    return {name: lay(name, array) for name, array in local.items()}
