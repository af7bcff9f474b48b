"""Placing: a host's rows of a global batch, put on the devices it has."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from jaxdist.input.recipes import Rows

Index = tuple[slice, ...]


def rows_held(shardings: Iterable[NamedSharding], batch: int) -> Rows:
    """Name the rows of a global batch of which this host's devices hold any piece.

    Returns:
        int64, sorted, each row once.
    """
    pieces: list[Index] = []
    for sharding in shardings:
        by_row = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        held = by_row.addressable_devices_indices_map((batch,)).values()
        pieces += [piece for piece in held if piece is not None]
    return rows_of(pieces, batch)


def rows_of(pieces: Iterable[Index], batch: int) -> Rows:
    """Gather the rows that pieces of a batch cover: sorted, each row once.

    >>> rows_of([(slice(4, 6),), (slice(0, 2),), (slice(4, 6),)], 8).tolist()
    [0, 1, 4, 5]
    """
    ranges = {piece[0].indices(batch) for piece in pieces}
    return np.unique(np.concatenate([np.arange(*bounds) for bounds in ranges]))


def place(
    local: Mapping[str, NDArray[Any]],
    rows: Rows,
    batch: int,
    shardings: Mapping[str, NamedSharding],
) -> dict[str, jax.Array]:
    """Put this host's rows of a batch on its devices, without asking other hosts.

    Args:
        local: arrays of those rows, [rows, ...].
        rows: which rows of the global batch they are, sorted.
        batch: rows of the global batch.
        shardings: how each key lies on the devices.

    Returns:
        Global arrays [batch, ...].
    """

    def piece(array: NDArray[Any], index: Index | None) -> NDArray[Any]:
        return array[_here(index or (), rows, batch)]

    return {
        name: jax.make_array_from_callback(
            (batch, *array.shape[1:]), shardings[name], partial(piece, array)
        )
        for name, array in local.items()
    }


def _here(index: Index, rows: Rows, batch: int) -> Index:
    """Translate an index of the global batch to one of this host's rows."""
    first, last, _ = index[0].indices(batch)
    begin = int(np.searchsorted(rows, first))
    return (slice(begin, begin + last - first), *index[1:])
