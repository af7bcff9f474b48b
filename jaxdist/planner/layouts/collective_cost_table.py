"""A tariff: what collectives take by their size, on every mesh of a space at once.

    seconds = arrays price(mesh, bytes / arrays)

The price of one array is the oracle's at a row of sizes, and on a straight line between
two of them and behind the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group
from jaxdist.planner.layouts.space import Column

_ARRAY_SIZES: Final = np.array([0, *(1 << power for power in range(10, 29, 2))])
"""Bytes of an array: none, and 1 KiB to 256 MiB."""
_MIN_ARRAYS: Final = 1e-9
"""Arrays at least, so that bytes of none are bytes of a very large one."""


@dataclass(frozen=True, kw_only=True)
class CollectiveCostTable:
    """The prices of a kind of collective along some axes."""

    seconds_per_array: Column
    """Seconds of an array, [mesh, size]."""

    def seconds(self, mesh_index: Column, arrays: Column, payload: Column) -> Column:
        """Return what so many arrays of each plan take together.

        Args:
            mesh_index: the place of each plan's mesh.
            arrays: how many it moves.
            payload: bytes of all of them.
        """
        count = np.maximum(arrays, _MIN_ARRAYS)
        each = payload / count
        above = np.searchsorted(_ARRAY_SIZES, each, side="right")
        above = np.clip(above, 1, len(_ARRAY_SIZES) - 1)
        low, high = _ARRAY_SIZES[above - 1], _ARRAY_SIZES[above]
        first, last = (
            self.seconds_per_array[mesh_index, above - 1],
            self.seconds_per_array[mesh_index, above],
        )
        found: Column = count * (first + (last - first) * (each - low) / (high - low))
        return found


def collective_cost_table(
    kind: str, cluster: Cluster, meshes: Sequence[MeshPlacement], axes: Sequence[str]
) -> CollectiveCostTable:
    """Return the prices of a kind of collective on each mesh.

    Args:
        kind: as the compiler names it.
        cluster: the machines.
        meshes: of a space, on devices.
        axes: along which it moves something, where a mesh has them.
    """
    each = [_table_row(kind, cluster, placed, axes) for placed in meshes]
    return CollectiveCostTable(seconds_per_array=np.array(each))


def _table_row(
    kind: str, cluster: Cluster, placed: MeshPlacement, axes: Sequence[str]
) -> list[float]:
    along = tuple(axis for axis in axes if placed.mesh.size(axis) > 1)
    if not along:
        return [0.0] * len(_ARRAY_SIZES)
    group = link_group(cluster, placed, along)
    return [collective_seconds(kind, int(size), 1, group) for size in _ARRAY_SIZES]
